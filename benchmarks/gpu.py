"""Steps on one GPU as scalebench runs them, against hand-written loops and, as the limit, the step in one CUDA graph.

In turns in one process, on the same feed. Target: 1.00, 0.98 at the least. Without a GPU the materials CNN alone runs,
on one CPU worker, so that this file is known to work.
"""

from __future__ import annotations

from benchmarks.loop_overhead import compare
from scalebench.core.machine.machine import count_gpus

RESNET50 = ("model=resnet50_v1_5", "train.precision=bfloat16", "dataset.feed=fixed", "dataset.size=400")
CASES = {
    "materials_cnn, batch 75": ("dataset.feed=device",),
    "ResNet-50 v1.5, bfloat16, batch 32": (*RESNET50, "train.batch_per_device=32"),
    "ResNet-50 v1.5, bfloat16, batch 256": (*RESNET50, "train.batch_per_device=256"),
}


def main() -> None:
    for title, overrides in (CASES if count_gpus() else {"materials_cnn, batch 75": ()}).items():
        for strategy in ("bare_torch", "ddp"):
            compare(f"{title}, {strategy}", strategy, 1, *overrides)
