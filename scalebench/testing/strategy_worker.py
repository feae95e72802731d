"""One rank of a strategy under contract: `python -m scalebench.testing.strategy_worker FOLDER` runs all checks.

It takes the strategy through training, evaluation, steps without synchronization and its end, once, and records what
it observed in checks<k>.json and weights<k>.npz, which strategy_contract reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import ProgressFile
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import PARTS, LossPart, NotMeasured, Strategy
from scalebench.workloads import datasets, user_code
from scalebench.workloads.source import Source

EPOCHS = 2
LOCAL_STEPS = 2
BROADCAST_VALUE = 42.5
ONE_STEP_FILE = "one_step"  # in the run's folder: train one step and check nothing


@dataclass
class RankChecks:
    """The observations of one rank."""

    rank: int
    shard: list[int]
    steps_per_epoch: int
    train_samples: int
    params: int | None = None
    has_batch_normalization: bool = False  # each device normalizes over its own part
    loss_sums: list[float | None] = field(default_factory=list)  # of each step
    samples: list[int] = field(default_factory=list)
    epoch_rows: list[list[int]] = field(default_factory=list)  # rows of the data set that were read in each epoch
    broadcast: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    user_losses: list[float] = field(default_factory=list)  # of a user's loss, over whole batches and over half ones
    message_bytes: list[int] = field(default_factory=list)
    sync_off: str | None = None  # "done", or why it cannot be
    run_isolated_sync: str | None = None
    parts: dict[str, str] = field(default_factory=dict)  # "kept" or "changed" the weights, or why not measured
    backend_used: str | None = None
    has_weights: bool = True
    peak_memory_bytes: list[int | None] = field(default_factory=list)
    devices: int = 0
    closed_twice: bool = False


class RecordingSource(Source):
    """A source that records which rows of the data set its batches are made of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: list[list[int]] = []

    def batch_indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        rows = super().batch_indices(epoch, step)
        self.rows.append(rows.tolist())
        return rows


class CountedLoop:
    """A loop of a fixed number of steps that keeps the loss part of each."""

    def __init__(self, batches: Iterator[Any], steps: int) -> None:
        self.parts: list[LossPart | None] = []
        self._batches, self._steps = batches, steps

    def __iter__(self) -> Iterator[Any]:
        while len(self.parts) < self._steps:
            yield next(self._batches)

    def done(self, part: LossPart | None) -> bool:
        self.parts.append(part)
        return len(self.parts) >= self._steps


def examine_strategy(
    folder: Path, spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile
) -> None:
    """Run all checks of one rank, in an order in which none spoils the next."""
    replica, replicas = strategy.shard()
    train, validation = datasets.open_sources(spec, replica, replicas, RecordingSource)
    assert isinstance(train, RecordingSource)
    checks = RankChecks(record.rank, [replica, replicas], train.steps_per_epoch, train.samples)
    strategy.setup()
    checks.params, checks.has_batch_normalization = strategy.num_params(), has_batch_normalization(strategy)
    _save_weights(strategy, folder / f"start{record.rank}.npz", checks)
    checks.broadcast = strategy.broadcast(BROADCAST_VALUE if record.rank == 0 else 0.0)
    batches = iter(strategy.feed(train))
    one_step = (folder / ONE_STEP_FILE).exists()
    _train_steps(strategy, batches, checks, 1 if one_step else EPOCHS * checks.steps_per_epoch)
    _save_weights(strategy, folder / f"weights{record.rank}.npz", checks)
    if one_step:
        strategy.close()
        write_json(folder / f"checks{record.rank}.json", checks)
        return
    _record_epoch_rows(train, checks)
    if validation is not None:
        checks.metrics = strategy.evaluate(validation)
        checks.user_losses = _compare_batch_sizes(spec, strategy)

    checks.message_bytes = strategy.message_sizes()
    checks.peak_memory_bytes, checks.devices = strategy.peak_memory_bytes(), len(strategy.place.devices)
    checks.run_isolated_sync = _describe_outcome(lambda: strategy.run_isolated_sync(checks.message_bytes or [1024]))
    checks.sync_off = _describe_outcome(lambda: _train_without_sync(strategy, batches))
    _save_weights(strategy, folder / f"unsynchronized{record.rank}.npz", checks)
    checks.backend_used = strategy.backend_used()
    _check_partial_steps(strategy, next(batches), checks)
    strategy.close()
    strategy.close()
    checks.closed_twice = True
    write_json(folder / f"checks{record.rank}.json", checks)


def has_batch_normalization(strategy: Strategy) -> bool:
    """Return whether the network has moving statistics, by their names in PyTorch and Keras."""
    model: Any = getattr(strategy, "model", None)
    if hasattr(model, "state_dict"):
        names = list(model.state_dict())
    else:
        names = [str(getattr(weight, "path", weight.name)) for weight in getattr(model, "weights", [])]
    return any(name.rpartition("/")[2].endswith(("running_mean", "moving_mean")) for name in names)


def _train_steps(strategy: Strategy, batches: Iterator[Any], checks: RankChecks, steps: int) -> None:
    loop = CountedLoop(batches, steps)
    strategy.train(loop)
    strategy.synchronize()
    for part in loop.parts:
        checks.loss_sums.append(None if part is None else float(part.loss_sum))
        checks.samples.append(0 if part is None else part.samples)


def _compare_batch_sizes(spec: RunSpec, strategy: Strategy) -> list[float]:
    """Return the mean loss of the validation samples in whole and in half batches, which each rank has all of."""
    if not user_code.has_user_loss(spec.config.model):
        return []
    losses = []
    for parts in (1, 2):
        _, validation = datasets.open_sources(spec, 0, 1)
        assert validation is not None
        validation.global_batch = -(-spec.global_batch // parts)
        losses.append(strategy.evaluate(validation)[user_code.LOSS_METRIC])
    return losses


def _record_epoch_rows(train: RecordingSource, checks: RankChecks) -> None:
    """Record the rows of each complete epoch; batches that were only prefetched belong to none."""
    per_epoch = checks.steps_per_epoch
    for epoch in range(EPOCHS):
        chunk = train.rows[epoch * per_epoch : (epoch + 1) * per_epoch]
        checks.epoch_rows.append([row for rows in chunk for row in rows])


def _train_without_sync(strategy: Strategy, batches: Iterator[Any]) -> None:
    """Train a few steps without gradient synchronization, and switch it on again."""
    strategy.set_gradient_sync(False)
    strategy.train(CountedLoop(batches, LOCAL_STEPS))
    strategy.set_gradient_sync(True)


def _check_partial_steps(strategy: Strategy, batch: Any, checks: RankChecks) -> None:
    """Run each part of a step as the probes do, and record whether it changed the weights."""
    switches = _describe_outcome(lambda: strategy.set_gradient_sync(False)) == "done"
    for part in PARTS:
        before = _read_weights(strategy)
        checks.parts[part] = _describe_outcome(partial(strategy.partial_step, batch, part))
        strategy.synchronize()
        if checks.parts[part] == "done" and before is not None:
            after = _read_weights(strategy) or {}
            same = all(np.array_equal(before[name], after[name]) for name in before)
            checks.parts[part] = "kept" if same else "changed"
    if switches:
        strategy.set_gradient_sync(True)


def _read_weights(strategy: Strategy) -> dict[str, Any] | None:
    try:
        return {name: np.array(array) for name, array in strategy.parameters().items()}
    except NotMeasured:
        return None


def _describe_outcome(action: Any) -> str:
    try:
        action()
    except NotMeasured as reason:
        return f"not measured: {reason}"
    return "done"


def _save_weights(strategy: Strategy, path: Path, checks: RankChecks) -> None:
    try:
        np.savez(path, **strategy.parameters())
    except NotMeasured:
        checks.has_weights = False


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, partial(examine_strategy, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
