"""The bubble of pipelines as measured, beside theory: two stages of an mlp that take about as long, a core each.

Measured is what is left of the devices' time beside forward and backward: the bubble, and transfers, the optimizer and
waiting for the slower stage. Each launch measures its stages by themselves too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import scalebench
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.parent import run

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))
MICRO_BATCHES = (2, 4, 8)
# The first stage needs no gradients of its inputs: 2 x 3430 x 4000 products of a sample against 3 x 9.15 million.
MODEL = ("model=mlp", "model.input_shape=[3430]", "model.params=null", "train.optimizer=sgd")
WORDS = (
    *MODEL,
    "gpus=2",
    "train.batch_per_device=256",
    "dataset.size=2048",
    "dataset.validation_share=0.25",
    "measure.probes=false",
)


def main() -> None:
    for strategy in ("pipeline_gpipe", "pipeline_1f1b"):
        for micro_batches in MICRO_BATCHES:
            rows = [measure(strategy, micro_batches) for _ in range(LAUNCHES)]
            found = statistics.median(row["bubble_share"] for row in rows)
            each = ", ".join(f"{row['bubble_share']:.3f}" for row in rows)
            balance = statistics.median(row["stage_balance"] for row in rows)
            print(
                f"{strategy} 2 stages, {micro_batches} micro-batches: bubble {found:.3f} ({each}), "
                f"(p-1)/(m+p-1) = {rows[0]['bubble_share_expected']:.3f}; stages are balanced to {balance:.2f}",
                flush=True,
            )


def measure(strategy: str, micro_batches: int) -> dict[str, float]:
    """The run's row."""
    words = [*WORDS, f"strategy={strategy}", f"strategy.options.micro_batches={micro_batches}"]
    spec = resolve(compose_config([*words, "strategy.options.split=time", "measure=quick"]))
    with tempfile.TemporaryDirectory() as name:
        run(spec, Path(name) / "run")
        row: dict[str, float] = scalebench.load(name).iloc[0].to_dict()
    if row["status"] != "ok":
        raise SystemExit(row["reason"])
    return row
