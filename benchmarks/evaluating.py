"""What the points of a curve cost: training seconds with an evaluation after every epoch over those without, in turns.

Wanted: under 1.02. Beside it the wall time that evaluating takes, and what keeping count of a training takes by itself.
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
from scalebench.measure.timed_loop import Block
from scalebench.measure.train_to_target import Training
from scalebench.runner.parent import run
from scalebench.workloads import datasets

PAIRS = int(os.environ.get("BENCHMARK_LAUNCHES", "5"))
CASES = (("bare_torch", 1), ("ddp_gloo", 2), ("bare_tensorflow", 1))
WORDS = ["dataset.size=20000", "measure=quick", "measure.probes=false", "measure.monitor=false", "train.stop.epochs=3"]
UPDATES = 100_000


def main() -> None:
    _bookkeeping()
    for strategy, gpus in CASES:
        if (specs := _specs(strategy, gpus)) is not None:
            _pairs(f"{strategy} gpus={gpus}", specs)


def _specs(strategy: str, gpus: int) -> dict[str, RunSpec] | None:
    found = {}
    for name, every in (("with", "1"), ("without", "null")):
        words = [f"strategy={strategy}", f"gpus={gpus}", f"train.evaluate_epochs={every}", *WORDS]
        found[name] = resolve(compose_config(words))
        if found[name].unsupported is not None:
            print(f"{strategy} gpus={gpus}: {found[name].unsupported}")
            return None
    datasets.prepare(found["with"].config)
    return found


def _pairs(label: str, specs: dict[str, RunSpec]) -> None:
    ratios, shares = [], []
    for number in range(PAIRS):
        ends = {name: _trained(specs[name]) for name in sorted(specs, reverse=bool(number % 2))}
        seconds = {name: result.quality.curve[-1].train_s for name, result in ends.items()}
        ratios.append(seconds["with"] / seconds["without"])
        shares.append(sum(point.evaluate_s for point in ends["with"].quality.curve) / seconds["with"])
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"{label}: training seconds with evaluation / without: {np.median(ratios):.3f} ({each})")
    print(f"{label}: wall time of evaluating beside it: {np.median(shares):.1%} of the training's", flush=True)


def _trained(spec: RunSpec) -> Result:
    with tempfile.TemporaryDirectory() as name:
        result = run(spec, Path(name) / "run")
    if result.status != "ok":
        raise SystemExit(f"{spec.label}: {result.status}: {result.reason}")
    return result


def _bookkeeping() -> None:
    """Of a strategy that does nothing, in blocks of one update: the most that there can be of it."""
    for name, words in (("constant", []), ("cosine", ["train.schedule=cosine", "train.warmup_epochs=1"])):
        spec = resolve(compose_config(["strategy=simulated", "gpus=1", "train.stop.steps=1000000", *words]))
        idle: Any = SimpleNamespace(place=SimpleNamespace(rank=0), set_learning_rate=lambda rate: None)
        train: Any = SimpleNamespace(steps_per_epoch=10**9, samples=10**9 * 75, global_batch=75)
        training = Training(spec, idle, train, (None, None), lambda training: None)
        updated_s = _mean_s(training.updated)
        block = Block(1, 1e-3, [(0.5, 75)])
        ended_s = _mean_s(lambda training=training, block=block: (training.room(), training.ended(block)))
        print(f"schedule={name}: {1e6 * updated_s:.2f} us in an update, {1e6 * ended_s:.2f} us between two blocks")


def _mean_s(action: Any) -> float:
    start_s = time.perf_counter()
    for _ in range(UPDATES):
        action()
    return (time.perf_counter() - start_s) / UPDATES


if __name__ == "__main__":
    main()
