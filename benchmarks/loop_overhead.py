"""Training as scalebench runs it, against minimal hand-written loops: throughput by its own figures, and by the clock.

Same model, weights, batch, data and threads, in the same processes, alternating. Targets: at least 0.98 of the
hand-written loop; ddp_gloo with its default options never slower, so that the interval includes 1 or is above it. On
one GPU the limit is the step in one CUDA graph; without a GPU its first case runs on one CPU worker, so that it is
known to work. The time between blocks is work of a measured run that a hand-written loop lacks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.spread import format_ratios
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_json
from scalebench.core.machine.machine import count_gpus
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.workloads import datasets

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))  # the layout of memory differs between them
ONLY = os.environ.get("BENCHMARK_STRATEGIES", "").split(",") if os.environ.get("BENCHMARK_STRATEGIES") else []
STRATEGIES = (
    ("bare_torch", 1), ("ddp_gloo", 1), ("ddp_gloo", 2), ("bare_tensorflow", 1), ("mirrored", 1), ("mirrored", 2),
    ("horovod_gloo", 2), ("horovod_mpi", 2), ("horovod_tensorflow_gloo", 2), ("horovod_tensorflow_mpi", 2),
)  # fmt: skip
# The user's functions of an example: batches that are dicts of integers, a loss and an optimizer of their own.
OWN_STEP = (
    *("model=custom", "model.torch=examples.token_transformer:build", "model.loss=examples.token_transformer:loss"),
    *("dataset=custom", "dataset.builder=examples.token_transformer:samples", "dataset.size=4000"),
    *("+model.options.width=32", "+model.options.layers=1", "train.batch_per_device=32"),
)
RESNET50 = ("model=resnet50_v1_5", "train.precision=bfloat16", "dataset.feed=fixed", "dataset.size=400")
ON_GPU = {
    "materials_cnn, batch 75": ("dataset.feed=device",) if count_gpus() else (),
    "ResNet-50 v1.5, bfloat16, batch 32": (*RESNET50, "train.batch_per_device=32"),
    "ResNet-50 v1.5, bfloat16, batch 256": (*RESNET50, "train.batch_per_device=256"),
}
# By the name of the benchmark: title, strategy, devices, and further overrides.
CASES: dict[str, list[tuple[str, str, int, Sequence[str]]]] = {
    "loop_overhead": [(f"{strategy} gpus={gpus}", strategy, gpus, ()) for strategy, gpus in STRATEGIES],
    "ddp_loop": [("ddp_gloo gpus=2", "ddp_gloo", 2, ())],
    "own_step": [("a step of one's own, ddp_gloo gpus=2", "ddp_gloo", 2, OWN_STEP)],
    "gpu": [
        (f"{title}, {strategy}", strategy, 1, overrides)
        for title, overrides in list(ON_GPU.items())[: None if count_gpus() else 1]
        for strategy in ("bare_torch", "ddp")
    ],
}
LABELS = {
    "blocks": "throughput as measured / that of a hand-written loop",
    "wall": "the same, with the time between blocks",
}


def main(name: str) -> None:
    """Print the seconds of a step in each loop, and the ratios to the hand-written one, over all launches."""
    for title, strategy, gpus, overrides in CASES[name]:
        if ONLY and strategy not in ONLY:
            continue
        launches = [turns for _ in range(LAUNCHES) if (turns := measure(strategy, gpus, overrides))]
        joined = {kind: np.concatenate([turns[kind] for turns in launches]) for kind in launches[0]} if launches else {}
        if joined:
            steps_us = ", ".join(f"{kind} {1e6 * np.median(seconds):,.0f} us" for kind, seconds in joined.items())
            print(f"{title}: a step takes {steps_us}")
            for kind, label in LABELS.items():
                print(f"  {label}: {format_ratios(joined['by_hand'], joined[kind])}", flush=True)


def measure(strategy: str, gpus: int, overrides: Sequence[str]) -> dict[str, list[float]]:
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
