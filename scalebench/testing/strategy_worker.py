"""One rank under test: `python -m scalebench.testing.strategy_worker FOLDER` does everything that a contract asks about.

It takes the strategy through training, evaluation, the switch of its exchange and its end, once, and leaves
what it saw in checks<k>.json and weights<k>.npz. The tests (contract.py) read those. Layer 3.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
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
from scalebench.strategies.base import PARTS, LossPart, NotMeasured, Strategy, probes_of
from scalebench.workloads import datasets
from scalebench.workloads.source import Source

EPOCHS = 2
LOCAL_STEPS = 2
SENT = 42.5


@dataclass
class Checks:
    """What one rank saw."""

    rank: int
    shard: list[int]
    steps_per_epoch: int
    train_samples: int
    options: dict[str, Any] = field(default_factory=dict)  # of the class, with their defaults
    params: int | None = None
    normalises: bool = False  # over batches: each device over its own part
    loss_sums: list[float | None] = field(default_factory=list)  # of each update
    samples: list[int] = field(default_factory=list)
    epoch_rows: list[list[int]] = field(default_factory=list)  # rows of the data set read in each epoch
    broadcast: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    message_bytes: list[int] = field(default_factory=list)
    exchange_off: str | None = None  # "done", or why it cannot be
    run_isolated_sync: str | None = None
    parts: dict[str, str] = field(default_factory=dict)  # "kept" or "changed" the weights, or why not measured
    backend_used: str | None = None
    has_weights: bool = True
    peak_memory_bytes: list[int | None] = field(default_factory=list)
    devices: int = 0
    closed_twice: bool = False


class ListeningSource(Source):
    """Notes which rows of the data set its batches are made of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: list[list[int]] = []

    def batch_indices(self, epoch: int, update: int) -> NDArray[np.int64]:
        rows = super().batch_indices(epoch, update)
        self.rows.append(rows.tolist())
        return rows


class CountedLoop:
    """Hands out so many batches and keeps what each update says of its loss."""

    def __init__(self, batches: Iterator[Any], steps: int) -> None:
        self.parts: list[LossPart | None] = []
        self._batches, self._steps = batches, steps

    def __iter__(self) -> Iterator[Any]:
        while len(self.parts) < self._steps:
            yield next(self._batches)

    def done(self, part: LossPart | None) -> bool:
        self.parts.append(part)
        return len(self.parts) >= self._steps


def examine(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    """All checks of one rank, in the order in which one does not spoil the next."""
    replica, replicas = strategy.shard()
    train, validation = datasets.open_sources(spec, replica, replicas, ListeningSource)
    assert isinstance(train, ListeningSource)
    seen = Checks(record.rank, [replica, replicas], train.steps_per_epoch, train.samples)
    seen.options = asdict(type(strategy).Options())
    strategy.setup()
    seen.params, seen.normalises = probes_of(strategy).num_params(), normalises(strategy)
    _keep_weights(strategy, folder / f"start{record.rank}.npz", seen)
    seen.broadcast = strategy.broadcast(SENT if record.rank == 0 else 0.0)
    batches = iter(strategy.feed(train))
    _train(strategy, batches, seen)
    _keep_weights(strategy, folder / f"weights{record.rank}.npz", seen)
    _epochs(train, seen)
    if validation is not None:
        seen.metrics = strategy.evaluate(validation)
    seen.message_bytes = probes_of(strategy).message_sizes()
    seen.peak_memory_bytes, seen.devices = strategy.peak_memory_bytes(), len(strategy.place.devices)
    seen.run_isolated_sync = _outcome(lambda: probes_of(strategy).run_isolated_sync(seen.message_bytes or [1024]))
    seen.exchange_off = _outcome(lambda: _train_apart(strategy, batches))
    _keep_weights(strategy, folder / f"apart{record.rank}.npz", seen)
    seen.backend_used = strategy.backend_used()
    _parts(strategy, next(batches), seen)
    strategy.close()
    strategy.close()
    seen.closed_twice = True
    write_json(folder / f"checks{record.rank}.json", seen)


def normalises(strategy: Strategy) -> bool:
    """Whether the network has moving statistics, by the names that PyTorch and Keras give them."""
    model = getattr(strategy, "model", None)
    if hasattr(model, "state_dict"):
        names = list(model.state_dict())
    else:
        names = [str(getattr(weight, "path", weight.name)) for weight in getattr(model, "weights", [])]
    return any(name.rpartition("/")[2].endswith(("running_mean", "moving_mean")) for name in names)


def _train(strategy: Strategy, batches: Iterator[Any], seen: Checks) -> None:
    loop = CountedLoop(batches, EPOCHS * seen.steps_per_epoch)
    strategy.train(loop)
    strategy.synchronize()
    for part in loop.parts:
        seen.loss_sums.append(None if part is None else float(part.loss_sum))
        seen.samples.append(0 if part is None else part.samples)


def _epochs(train: ListeningSource, seen: Checks) -> None:
    """The rows of each whole epoch; what is read ahead of training belongs to none of them."""
    per_epoch = seen.steps_per_epoch
    for epoch in range(EPOCHS):
        chunk = train.rows[epoch * per_epoch : (epoch + 1) * per_epoch]
        seen.epoch_rows.append([row for rows in chunk for row in rows])


def _train_apart(strategy: Strategy, batches: Iterator[Any]) -> None:
    """A few updates with the exchange off, and one with it on again."""
    probes_of(strategy).set_gradient_sync(False)
    strategy.train(CountedLoop(batches, LOCAL_STEPS))
    probes_of(strategy).set_gradient_sync(True)


def _parts(strategy: Strategy, batch: Any, seen: Checks) -> None:
    """Each part of an update as the probes take it, and whether it changed the weights."""
    switches = _outcome(lambda: probes_of(strategy).set_gradient_sync(False)) == "done"
    for part in PARTS:
        before = _weights(strategy)
        seen.parts[part] = _outcome(partial(probes_of(strategy).partial_step, batch, part))
        strategy.synchronize()
        if seen.parts[part] == "done" and before is not None:
            after = _weights(strategy) or {}
            same = all(np.array_equal(before[name], after[name]) for name in before)
            seen.parts[part] = "kept" if same else "changed"
    if switches:
        probes_of(strategy).set_gradient_sync(True)


def _weights(strategy: Strategy) -> dict[str, Any] | None:
    try:
        return {name: np.array(array) for name, array in probes_of(strategy).parameters().items()}
    except NotMeasured:
        return None


def _outcome(action: Any) -> str:
    try:
        action()
    except NotMeasured as reason:
        return f"not measured: {reason}"
    return "done"


def _keep_weights(strategy: Strategy, path: Path, seen: Checks) -> None:
    try:
        np.savez(path, **probes_of(strategy).parameters())
    except NotMeasured:
        seen.has_weights = False


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, lambda *parts: examine(*parts, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
