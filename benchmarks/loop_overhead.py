"""Plain and replicated training as scalebench runs it, against a minimal hand-written loop. Target: at least 0.98.

Same model, batch, data and threads, in the same processes, alternating.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.spread import format_ratios
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.workloads import datasets

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))  # the layout of memory differs between them
ONLY = os.environ.get("BENCHMARK_STRATEGIES", "").split(",") if os.environ.get("BENCHMARK_STRATEGIES") else []
CASES = (
    ("bare_torch", 1), ("ddp_gloo", 1), ("ddp_gloo", 2), ("bare_tensorflow", 1), ("mirrored", 1), ("mirrored", 2),
    ("horovod_gloo", 2), ("horovod_mpi", 2), ("horovod_tensorflow_gloo", 2), ("horovod_tensorflow_mpi", 2),
)  # fmt: skip
LABELS = {
    "blocks": "throughput as measured / that of a hand-written loop",
    "wall": "the same, with the time between blocks",
}


def main() -> None:
    for strategy, gpus in CASES:
        if not ONLY or strategy in ONLY:
            compare(f"{strategy} gpus={gpus}", strategy, gpus)


def compare(title: str, strategy: str, gpus: int, *overrides: str) -> None:
    """Print the seconds of a step in each loop, and the ratios to the hand-written one, over all launches."""
    launches = [turns for _ in range(LAUNCHES) if (turns := measure(strategy, gpus, *overrides))]
    if launches:
        joined = {name: np.concatenate([turns[name] for turns in launches]) for name in launches[0]}
        steps_us = ", ".join(f"{name} {1e6 * np.median(seconds):,.0f} us" for name, seconds in joined.items())
        print(f"{title}: a step takes {steps_us}")
        for kind, label in LABELS.items():
            print(f"  {label}: {format_ratios(joined['by_hand'], joined[kind])}", flush=True)


def measure(strategy: str, gpus: int, *overrides: str) -> dict[str, list[float]]:
    """Return the seconds per step of each turn on rank 0: by_hand; blocks: scalebench as measured; wall: with the time
    between blocks."""
    spec = resolve(compose_config([f"strategy={strategy}", f"gpus={gpus}", *overrides]))
    if spec.unsupported is not None:
        print(f"{strategy} gpus={gpus}: {spec.unsupported}")
        return {}
    datasets.prepare(spec.config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_spec(spec, folder)
        ended = launchers.launch(spec, folder, "benchmark", module="benchmarks.loop_worker")
        if set(ended.exit_codes) != {0}:
            raise SystemExit((folder / rank_log_name(0)).read_text())
        turns: dict[str, list[float]] = read_json(folder / "turns.json")
        return turns
