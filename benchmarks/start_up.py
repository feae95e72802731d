"""How long the command line takes, alternating with Python itself. Targets: help, strategies 1 s, a simulated run 1.5
s."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from benchmarks.spread import format_ratios

TURNS = 10
PYTHON = [sys.executable, "-c", "import numpy"]
SCALEBENCH = [sys.executable, "-m", "scalebench"]
SIMULATED = "strategy=simulated gpus=1 measure=quick measure.warmup_steps=1 measure.min_s=0 measure.max_s=0.02".split()
CASES = {
    "--help": [*SCALEBENCH, "--help"],
    "list": [*SCALEBENCH, "list", "strategies"],
    "simulated run": [*SCALEBENCH, *SIMULATED],
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, PYTHONPATH=os.getcwd())
        seconds: dict[str, list[float]] = {name: [] for name in ["python", *CASES]}
        _run(CASES["simulated run"], folder, environment)  # creates the data set
        for _ in range(TURNS):
            for name, command in {"python": PYTHON, **CASES}.items():
                seconds[name].append(_run(command, folder, environment))
    for name in CASES:
        middle = sorted(seconds[name])[TURNS // 2]
        compared = format_ratios(seconds[name], seconds["python"])
        print(f"{name}: {middle:.2f} s; time / `python -c 'import numpy'`: {compared}")


def _run(command: list[str], folder: str, environment: dict[str, str]) -> float:
    begin_s = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin_s
