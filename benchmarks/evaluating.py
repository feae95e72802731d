"""The cost of the points of a curve: training seconds with an evaluation after every epoch over those without,
alternating.

Target: under 1.02. Also prints the wall time of the evaluations, and the cost of the bookkeeping by itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.result import Result
from scalebench.core.spec import RunSpec
from scalebench.measure.timed_loop import StepBlock
from scalebench.measure.train_to_target import TrainingRun
from scalebench.runner.parent import run_spec
from scalebench.workloads import datasets

PAIRS = int(os.environ.get("BENCHMARK_LAUNCHES", "5"))
CASES = (("bare_torch", 1), ("ddp_gloo", 2), ("bare_tensorflow", 1))
OVERRIDES = [
    "dataset.size=20000",
    "measure=quick",
    "measure.probes=false",
    "measure.monitor=false",
    "train.stop.epochs=3",
]
CALLS = 100_000


def main() -> None:
    _bookkeeping()
    for strategy, gpus in CASES:
        if (specs := _specs(strategy, gpus)) is not None:
            _pairs(f"{strategy} gpus={gpus}", specs)


def _specs(strategy: str, gpus: int) -> dict[str, RunSpec] | None:
    specs = {}
    for name, every in (("with", "1"), ("without", "null")):
        overrides = [f"strategy={strategy}", f"gpus={gpus}", f"train.evaluate_epochs={every}", *OVERRIDES]
        specs[name] = resolve(compose_config(overrides))
        if specs[name].unsupported is not None:
            print(f"{strategy} gpus={gpus}: {specs[name].unsupported}")
            return None
    datasets.prepare(specs["with"].config)
    return specs


def _pairs(label: str, specs: dict[str, RunSpec]) -> None:
    ratios, shares = [], []
    for number in range(PAIRS):
        ends = {name: _run_training(specs[name]) for name in sorted(specs, reverse=bool(number % 2))}
        seconds = {name: result.quality.curve[-1].train_s for name, result in ends.items()}
        ratios.append(seconds["with"] / seconds["without"])
        shares.append(sum(point.evaluate_s for point in ends["with"].quality.curve) / seconds["with"])
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"{label}: training seconds with evaluation / without: {np.median(ratios):.3f} ({each})")
    print(f"{label}: wall time of evaluating beside it: {np.median(shares):.1%} of the training's", flush=True)


def _run_training(spec: RunSpec) -> Result:
    with tempfile.TemporaryDirectory() as name:
        result = run_spec(spec, Path(name) / "run")
    if result.status != "ok":
        raise SystemExit(f"{spec.label}: {result.status}: {result.reason}")
    return result


def _bookkeeping() -> None:
    """Print the cost for a strategy that does nothing, in blocks of one step: an upper bound."""
    for name, overrides in (("constant", []), ("cosine", ["train.schedule=cosine", "train.warmup_epochs=1"])):
        spec = resolve(compose_config(["strategy=simulated", "gpus=1", "train.stop.steps=1000000", *overrides]))
        idle: Any = SimpleNamespace(place=SimpleNamespace(rank=0), set_learning_rate=lambda rate: None)
        train: Any = SimpleNamespace(steps_per_epoch=10**9, samples=10**9 * 75, global_batch=75)
        training = TrainingRun(spec, idle, train, (None, None), lambda training: None)
        step_s = _mean_s(training.on_step)
        block = StepBlock(1, 1e-3, [(0.5, 75)])
        block_s = _mean_s(lambda training=training, block=block: (training.steps_left(), training.on_block(block)))
        print(f"schedule={name}: {1e6 * step_s:.2f} us in a step, {1e6 * block_s:.2f} us between two blocks")


def _mean_s(action: Any) -> float:
    start_s = time.perf_counter()
    for _ in range(CALLS):
        action()
    return (time.perf_counter() - start_s) / CALLS


if __name__ == "__main__":
    main()
