"""The measured bubble of pipelines against theory: two stages of an mlp that take equally long, on a core each.

The measured bubble is the devices' time without forward and backward: it includes transfers, the optimizer and the wait
for the slower stage. Each launch also measures its stages by themselves.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import scalebench
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.parent import run_spec

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))
MICRO_BATCHES = (2, 4, 8)
# The first stage needs no gradients of its inputs: 2 x 3430 x 4000 products of a sample against 3 x 9.15 million.
MODEL = ("model=mlp", "model.input_shape=[3430]", "model.params=null", "train.optimizer=sgd")
OVERRIDES = (
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
            results = [measure(strategy, micro_batches) for _ in range(LAUNCHES)]
            bubble = statistics.median(result["bubble_share"] for result in results)
            each = ", ".join(f"{result['bubble_share']:.3f}" for result in results)
            balance = statistics.median(result["stage_balance"] for result in results)
            print(
                f"{strategy} 2 stages, {micro_batches} micro-batches: bubble {bubble:.3f} ({each}), "
                f"(p-1)/(m+p-1) = {results[0]['bubble_share_expected']:.3f}; stages are balanced to {balance:.2f}",
                flush=True,
            )


def measure(strategy: str, micro_batches: int) -> dict[str, float]:
    """Run once, and return its row of the frame."""
    overrides = [*OVERRIDES, f"strategy={strategy}", f"strategy.options.micro_batches={micro_batches}"]
    spec = resolve(compose_config([*overrides, "strategy.options.split=time", "measure=quick"]))
    with tempfile.TemporaryDirectory() as name:
        run_spec(spec, Path(name) / "run")
        result = scalebench.load(name).iloc[0]
    if result["status"] != "ok":
        raise SystemExit(result["reason"])
    return {str(name): value for name, value in result.items()}
