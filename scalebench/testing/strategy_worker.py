"""One rank of a strategy, or of a model, under contract: `python -m scalebench.testing.strategy_worker FOLDER`.

It takes the strategy through training, evaluation, steps without synchronization and its end, once, and records what
it observed in checks<k>.json, start<k>.npz and weights<k>.npz, which the contracts read. A CheckPlan beside the folder
requests less, a network that is built and trained for a few steps; or a fault in a run like any other.

If the folder has given.npz, the weights of the same network in PyTorch, a Keras network starts from those. Both
frameworks keep weights in the order in which layers were made, a kernel before its bias. Keras' kernels have their axes
in another order; everything else is copied as it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.json_files import read_record, write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import FORWARD, PARTS, LossPart, NotMeasured, Strategy
from scalebench.strategies.simulated import raise_fault
from scalebench.workloads import datasets, user_code
from scalebench.workloads.source import Source

EPOCHS = 2
LOCAL_STEPS = 2
BROADCAST_VALUE = 42.5
START_WEIGHTS_FILE = "given.npz"
# A kernel's number of axes -> torch's axes in Keras' order.
KERAS_KERNEL_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")
# "module:function" that takes an action and returns the floating point operations that the framework counts in it.
FLOP_COUNTERS = {"torch": "scalebench.strategies.torch.profiling:count_flops"}


@dataclass(frozen=True)
class CheckPlan:
    """What a rank does after its start."""

    steps: int | None = None  # to train; None: whole epochs, and all checks
    evaluates: bool = False  # after those steps, and counts the operations of a forward pass
    fault: str | None = None  # of strategies.simulated.raise_fault; else what the rank of a run does
    rank: int = 0  # that fails, when it draws this batch: every strategy does that, whatever owns its loop
    batch: int = 5


def plan_path(folder: Path) -> Path:
    """Return the path of a plan: beside the run's folder, which holds nothing but files of runs."""
    return folder.with_name(f"{folder.name}-plan.json")


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
    forward_flops: float | None = None  # of one sample, as the framework counts
    cannot_map: str | None = None  # why it could not start from PyTorch's weights


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


def run_with_fault(plan: CheckPlan, spec: RunSpec, strategy: Strategy, *rest: Any) -> None:
    """Run the phases of a rank, of which one fails."""
    feed = strategy.feed

    def feed_with_fault(source: Source) -> Iterator[Any]:
        for number, drawn in enumerate(feed(source)):
            if number == plan.batch:
                raise_fault(str(plan.fault))
            yield drawn

    if strategy.place.rank == plan.rank:
        strategy.feed = feed_with_fault  # type: ignore[method-assign]
    Session(spec, strategy, *rest).run()


def examine_strategy(
    folder: Path, plan: CheckPlan, spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile
) -> None:
    """Run the checks of one rank, in an order in which none spoils the next."""
    replica, replicas = strategy.shard()
    train, validation = datasets.open_sources(spec, replica, replicas, RecordingSource)
    assert isinstance(train, RecordingSource)
    checks = RankChecks(record.rank, [replica, replicas], train.steps_per_epoch, train.samples)
    strategy.setup()
    checks.params, checks.has_batch_normalization = strategy.num_params(), has_batch_normalization(strategy)
    if (folder / START_WEIGHTS_FILE).exists():
        _load_weights(strategy, folder / START_WEIGHTS_FILE, checks)
    _save_weights(strategy, folder / f"start{record.rank}.npz", checks)
    checks.broadcast = strategy.broadcast(BROADCAST_VALUE if record.rank == 0 else 0.0)
    batches = iter(strategy.feed(train))
    steps = EPOCHS * checks.steps_per_epoch if plan.steps is None else plan.steps
    if steps:
        _train_steps(strategy, batches, checks, steps)
    _save_weights(strategy, folder / f"weights{record.rank}.npz", checks)
    if validation is not None and (plan.steps is None or plan.evaluates):
        checks.metrics = strategy.evaluate(validation)
        checks.user_losses = _compare_batch_sizes(spec, strategy)
    if plan.steps is None:
        _check_further(folder, strategy, train, batches, checks)
    elif plan.evaluates and (counter := FLOP_COUNTERS.get(spec.config.strategy.framework)) is not None:
        module, _, function = counter.partition(":")
        batch, count = next(batches), getattr(importlib.import_module(module), function)
        checks.forward_flops = count(lambda: strategy.partial_step(batch, FORWARD)) / spec.global_batch
    strategy.close()
    write_json(folder / f"checks{record.rank}.json", checks)


def _check_further(
    folder: Path, strategy: Strategy, train: RecordingSource, batches: Iterator[Any], checks: RankChecks
) -> None:
    """Record what was read, and check steps without synchronization, parts of a step, and the end."""
    for epoch in range(EPOCHS):  # batches that were only prefetched belong to none
        chunk = train.rows[epoch * checks.steps_per_epoch : (epoch + 1) * checks.steps_per_epoch]
        checks.epoch_rows.append([row for rows in chunk for row in rows])
    checks.message_bytes = strategy.message_sizes()
    checks.peak_memory_bytes, checks.devices = strategy.peak_memory_bytes(), len(strategy.place.devices)
    checks.run_isolated_sync = _describe_outcome(lambda: strategy.run_isolated_sync(checks.message_bytes or [1024]))
    checks.sync_off = _describe_outcome(lambda: _train_without_sync(strategy, batches))
    _save_weights(strategy, folder / f"unsynchronized{checks.rank}.npz", checks)
    checks.backend_used = strategy.backend_used()
    _check_partial_steps(strategy, next(batches), checks)
    strategy.close()
    checks.closed_twice = True  # once more at the end


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


class UnmappableWeights(Exception):
    """The weights of the two networks do not correspond; the message names the first that differs."""


def map_torch_weights(torch_weights: Mapping[str, Any], variables: Sequence[tuple[str, tuple[int, ...]]]) -> list[Any]:
    """Return PyTorch's arrays for the trainable variables (name, shape) of Keras, in their order."""
    arrays = [(name, array) for name, array in torch_weights.items() if not name.endswith(STATISTICS)]
    if len(arrays) != len(variables):
        raise UnmappableWeights(f"PyTorch's network has {len(arrays)} trained arrays and Keras' has {len(variables)}")
    mapped = []
    for number, ((torch_name, array), (keras_name, shape)) in enumerate(zip(arrays, variables, strict=True), start=1):
        is_kernel = keras_name.rpartition("/")[2].partition(":")[0].endswith("kernel")
        axes = KERAS_KERNEL_AXES.get(array.ndim) if is_kernel else None
        turned = array if axes is None else array.transpose(axes)
        if turned.shape != shape:
            raise UnmappableWeights(
                f"weights are mapped by their order, and number {number} is {torch_name} {array.shape} in PyTorch, "
                f"which would be {turned.shape} in Keras, where {keras_name} is {shape}; "
                "make the layers in the same order"
            )
        mapped.append(np.ascontiguousarray(turned))
    return mapped


def _load_weights(strategy: Any, path: Path, checks: RankChecks) -> None:
    """Have a Keras network start from the weights of PyTorch's."""
    variables = strategy.model.trainable_variables
    with np.load(path, allow_pickle=False) as arrays:
        torch_weights = dict(arrays)
    try:
        names = [(str(getattr(v, "path", v.name)), tuple(v.shape)) for v in variables]
        for variable, array in zip(variables, map_torch_weights(torch_weights, names), strict=True):
            variable.assign(array)
    except UnmappableWeights as reason:
        checks.cannot_map = str(reason)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    plan = read_record(plan_path(folder), CheckPlan) if plan_path(folder).exists() else CheckPlan()
    return run_rank(
        folder, partial(examine_strategy, folder, plan) if plan.fault is None else partial(run_with_fault, plan)
    )


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
