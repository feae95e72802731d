"""Steps on one GPU as scalebench runs them, against hand-written loops and, as the limit, the step in one CUDA graph.

In turns in one process, on the same feed. Target: 1.00, 0.98 at the least. Without a GPU the materials CNN alone runs,
on one CPU worker, so that this file is known to work.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.loop_overhead import LABELS, measure
from benchmarks.spread import format_ratios
from scalebench.core.machine.machine import count_gpus

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))
RESNET50 = ("model=resnet50_v1_5", "train.precision=bfloat16", "dataset.feed=fixed", "dataset.size=400")
CASES = {
    "materials_cnn, batch 75": ("dataset.feed=device",),
    "ResNet-50 v1.5, bfloat16, batch 32": (*RESNET50, "train.batch_per_device=32"),
    "ResNet-50 v1.5, bfloat16, batch 256": (*RESNET50, "train.batch_per_device=256"),
}


def main() -> None:
    cases = CASES if count_gpus() else {"materials_cnn, batch 75": ()}
    for title, overrides in cases.items():
        for strategy in ("bare_torch", "ddp"):
            launches = [turns for _ in range(LAUNCHES) if (turns := measure(strategy, 1, *overrides))]
            if not launches:
                continue
            joined = {name: np.concatenate([turns[name] for turns in launches]) for name in launches[0]}
            steps_us = ", ".join(f"{name} {1e6 * np.median(seconds):,.0f} us" for name, seconds in joined.items())
            print(f"{title}, {strategy}: a step takes {steps_us}", flush=True)
            for kind in ("blocks", "wall"):
                print(f"  {LABELS[kind]}: {format_ratios(joined['by_hand'], joined[kind])}", flush=True)
