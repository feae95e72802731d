"""bare_torch and ddp_gloo as scalebench runs them, against a minimal hand-written loop. Wanted: at least 0.98.

Same model, batch, data and threads, in the same processes, in turns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.spread import ratios
from scalebench import cli, jobs
from scalebench.launchers import local
from scalebench.records import read_json
from scalebench.resolve import resolve
from scalebench.spec import write_spec
from scalebench.workloads import datasets

CASES = (("bare_torch", 1), ("ddp_gloo", 1), ("ddp_gloo", 2))


def main() -> None:
    for strategy, gpus in CASES:
        seconds = measure(strategy, gpus)
        ours, by_hand = seconds["scalebench"], seconds["by_hand"]
        print(f"{strategy} gpus={gpus}: throughput of scalebench / hand-written loop: {ratios(by_hand, ours)}")


def measure(strategy: str, gpus: int) -> dict[str, list[float]]:
    """Seconds of each turn on rank 0: {"scalebench": [...], "by_hand": [...]}."""
    spec = resolve(jobs.to_config(cli.compose([f"strategy={strategy}", f"gpus={gpus}"])))
    datasets.prepare(spec.config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_spec(spec, folder)
        ended = local.launch(spec, folder, "benchmark", module="benchmarks.loop_worker")
        if set(ended.exit_codes) != {0}:
            raise SystemExit((folder / local.log_name(0)).read_text())
        found: dict[str, list[float]] = read_json(folder / "turns.json")
        return found
