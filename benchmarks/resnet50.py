"""resnet50 at 224 pixels, batch 4, two threads: scalebench in both frameworks, against keras.applications in a plain
loop and the graph of tf_cnn_benchmarks in a session of TensorFlow 1.

Target: at least as fast as either. Each in a process of its own, alternating, so that thread pools do not interfere.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.spread import format_ratios
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import write_spec
from scalebench.workloads import datasets

ROUNDS = int(os.environ.get("BENCHMARK_LAUNCHES", "5"))
OTHERS = ("keras.applications", "TensorFlow 1 graph")
OURS = ("bare_torch", "bare_tensorflow")
SETTINGS = "gpus=1 model=resnet50 train.batch_per_device=4 dataset.size=64 dataset.dtype=float32 dataset.feed=fixed"


def main() -> None:
    rates: dict[str, list[float]] = {name: [] for name in (*OURS, *OTHERS)}
    with tempfile.TemporaryDirectory() as name:
        folders = {strategy: _prepare(Path(name), strategy) for strategy in OURS}
        for number in range(ROUNDS):
            for kind in rates if number % 2 else reversed(rates):  # alternate which is first
                rates[kind].append(images_per_s(kind, folders.get(kind, folders[OURS[0]])))
    for kind, measured in rates.items():
        print(f"{kind}: {', '.join(f'{rate:.2f}' for rate in measured)} images/s", flush=True)
    for kind, other in itertools.product(OURS, OTHERS):
        print(f"{kind} / {other}: {format_ratios(rates[kind], rates[other])}", flush=True)


def _prepare(root: Path, strategy: str) -> Path:
    overrides = [f"strategy={strategy}", "hardware.cpus_per_device=2", *SETTINGS.split()]
    spec = resolve(compose_config(overrides))
    datasets.prepare(spec.config)
    folder = root / strategy
    folder.mkdir()
    write_spec(spec, folder)
    return folder


def images_per_s(kind: str, folder: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.resnet50_worker", kind, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
