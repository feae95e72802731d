"""What a way of training has to do (Strategy), and what it may also let itself be asked about its steps (Probes)."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from scalebench.core.errors import InputError, no_such
from scalebench.core.result import Profile, StageRecord
from scalebench.core.spec import Place, RunSpec, StrategySpec
from scalebench.workloads.source import Source

FORWARD, BACKWARD, OPTIMIZER = PARTS = ("forward", "backward", "optimizer")


class Unsupported(Exception):
    """The run is well-formed and impossible here; the message is the reason, in one sentence."""


class NotMeasured(Exception):
    """A probe is not possible with this strategy or on this machine; the message is the reason, in one sentence."""


class LossPart(NamedTuple):
    """One process's share of the loss of a step. Where several processes train on the same samples, as the stages of
    one model do, one of them returns it and the others return None."""

    loss_sum: Any  # float or a lazy scalar of the framework: the sum over this process's samples
    samples: int


class Loop(Protocol):
    """Hands out batches and counts the finished steps; it times blocks of steps."""

    def __iter__(self) -> Iterator[Any]: ...

    def done(self, part: LossPart | None) -> bool:
        """Count one step that was issued. True when the loop is over."""


@dataclass
class NoOptions:
    """The options of a strategy that has none."""


class Strategy(ABC):
    """One way of training a workload on several devices. It lives in one worker process.

    It never measures, prints or writes files, and never changes a batch size on its own.
    """

    Options: ClassVar[type] = NoOptions  # dataclass; its fields are the keys under strategy.options

    def __init__(self, spec: RunSpec, rank: int) -> None:
        """`spec` is the run, `rank` the number of this process in it."""
        self.spec = spec
        self.place: Place = spec.places[rank]
        self.options: Any = parse_options(type(self), spec.config.strategy)

    @abstractmethod
    def setup(self) -> None:
        """Join the group; build model and optimizer. Raises Unsupported(reason) if that is impossible here."""

    def shard(self) -> tuple[int, int]:
        """(replica, replicas): the part of each global batch that this process reads."""
        return self.place.rank, self.spec.processes

    def feed(self, source: Source) -> Iterable[Any]:
        """Turn numpy batches into what `step` takes: tensors, pinned, placed, prefetched."""
        return source

    def train(self, loop: Loop) -> None:
        """Train until the loop is over. A strategy whose trainer owns the loop reports to `loop` from a callback."""
        for batch in loop:
            loop.done(self.step(batch))

    @abstractmethod
    def step(self, batch: Any) -> LossPart | None:
        """Train one step of the group. The loss is lazy and fetched at block ends; None: no loss in this process."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device work issued so far; never called inside a timed block."""

    @abstractmethod
    def broadcast(self, value: float) -> float:
        """Return rank 0's value on every rank, when every rank has called it, so that all stop at the same step."""

    @abstractmethod
    def backend_used(self) -> str | None:
        """Observe which backend carried the gradients, rather than assume it; None: nothing was sent."""

    @abstractmethod
    def evaluate(self, source: Source) -> dict[str, float]:
        """Compute validation metrics over all of `source`, the same on every rank."""

    def peak_memory_bytes(self) -> list[int | None]:
        """The peak of each device of this process; None where it cannot be determined, never 0."""
        return [None for _ in self.place.devices]

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate from the next step on; called between two steps, also within `train`."""
        raise Unsupported(
            f"{self.spec.config.strategy.name} keeps its learning rate: leave out train.schedule and warm-up"
        )

    def serve(self) -> None:
        """Run a process in another role than chief: it serves the chief until it is ended from outside."""
        raise Unsupported(f"{self.spec.config.strategy.name} has no process that serves others")

    def close(self) -> None:
        """Leave the group. May be called twice, also after a failed setup."""


class Probes:
    """What the measurements after the headline figures ask of a strategy, which inherits this class beside Strategy.

    Every method is optional: where one is missing or raises NotMeasured, the row has null and the reason. Each is
    called on all ranks alike.
    """

    spec: RunSpec  # of the Strategy
    reads_in_step: ClassVar[bool] = False  # samples are read within `step`, so that a batch used again is read again

    def not_measured(self, reason: str) -> NotMeasured:
        """The reason, with the strategy's name before it, as an exception to raise."""
        return NotMeasured(f"{self.spec.config.strategy.name} {reason}")

    def set_gradient_sync(self, on: bool) -> None:
        """Switch gradient synchronization off or on again; called between blocks."""
        raise self.not_measured("cannot train without its exchange")

    def message_sizes(self) -> list[int]:
        """Bytes of each message of one step after fusion; read after warm-up. Empty: not known."""
        return []

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Synchronize buffers of these sizes (bytes) in the way that the strategy synchronizes gradients."""
        raise self.not_measured("has no exchange of its own")

    def partial_step(self, batch: Any, until: str) -> None:
        """Train a step up to and with that one of PARTS, without synchronization; it is switched off before, where it
        can be. Spoils the weights."""
        raise self.not_measured("does not take an update apart")

    def local_step(self, batch: Any) -> list[float]:
        """Seconds that each device of this process works on its part of one step, up to where they would synchronize.
        With one device per process, a step with synchronization switched off measures the same."""
        raise self.not_measured("does not tell its devices apart")

    def copy_batch(self, batch: Any) -> None:
        """Copy as many bytes as `batch` has from host memory to the devices, as `feed` does."""
        raise NotMeasured("a batch is used where it lies: nothing is copied to a device")

    def profile(self, updates: int, trace: Path | None) -> Profile:
        """Train that many more steps on the last batch under the framework's profiler. With `trace`, leave a gzipped
        Chrome trace there, whose `ts` are microseconds since the epoch, or since the baseTimeNanoseconds in it.
        Spoils the weights."""
        raise self.not_measured("has no profiler")

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        """An action that does the collective operation (a name of probe_records.Collective) once on buffers of this
        size, as the strategy's backend does it; `synchronize` waits for it."""
        raise self.not_measured("has no collective operations of its own")

    def transfer(self, kind: str, source: int | None, target: int | None, size_bytes: int) -> Callable[[], None]:
        """An action that does this rank's part of one transfer (probe_records.Transfer), or nothing where it has none;
        `synchronize` waits for it. Every rank is called with the same; NotMeasured on all of them or on none."""
        raise self.not_measured("measures no bandwidth; strategies with PyTorch do")

    def record_timeline(self, path: Path, updates: int) -> dict[str, float]:
        """Train that many more steps while the framework writes a timeline of its communication, which one rank keeps
        at `path`. Seconds of each phase of a step, by the fields of results.Timeline. Spoils the weights."""
        raise self.not_measured("has no timeline of its own")

    def settings_used(self) -> dict[str, str]:
        """Observe which precision, data_format and compiler the steps really ran with, under these names; what cannot
        be determined is left out. Read after the training, and may train further steps."""
        return {}

    def stages(self) -> list[StageRecord]:
        """The parts of the model on the devices of this process, where none holds all of it, and how long each works
        by itself. Read after the training; may train on with its last batch. Spoils the weights."""
        return []

    def state_bytes(self) -> list[int | None]:
        """For each device of this process: weights, gradients and optimizer state kept from step to step; None where
        that cannot be determined, never 0. Empty: no device has a figure. Read after the training."""
        return []

    def num_params(self) -> int | None:
        """Trainable parameters of all of the model; None when there is no model."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Weights as numpy arrays under the neutral names of workloads.network."""
        raise self.not_measured("does not show its weights")

    def versions(self) -> dict[str, str]:
        """Versions of the framework and the libraries that this process loaded."""
        return {}


class NoProbes(Probes):
    """Stands in for the probes of a strategy that is only a Strategy: each of them gives the same reason."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec

    def not_measured(self, reason: str) -> NotMeasured:
        return NotMeasured(f"strategy {self.spec.config.strategy.name} has no probes")

    def copy_batch(self, batch: Any) -> None:
        raise self.not_measured("copies no batch")


def probes_of(strategy: Strategy) -> Probes:
    """The probes of a strategy, which are the strategy itself where it has any."""
    return strategy if isinstance(strategy, Probes) else NoProbes(strategy.spec)


def parse_options(kind: type[Strategy], stated: StrategySpec) -> Any:
    """The strategy's Options from plain values; InputError as check_options and check_values."""
    check_options(stated.name, stated.options, dataclasses.asdict(kind.Options()))
    check_values(stated)
    return kind.Options(**stated.options)


def check_options(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """InputError that names an unknown key and its nearest neighbour, or a value of another type than its default."""
    for key, value in options.items():
        if key not in defaults:
            raise InputError(no_such(f"option of strategy '{name}'", key, defaults))
        default = defaults[key]
        if not _fits(value, default):
            raise InputError(
                f"strategy.options.{key}={value!r} should be {type(default).__name__}, as its default {default!r}"
            )


def check_values(stated: StrategySpec) -> None:
    """InputError for a value that is none of its choices, or below the least; None is what a strategy decides."""
    for key, known in stated.choices.items():
        value = stated.options.get(key)
        if value is not None and value not in known:
            raise InputError(no_such(f"strategy.options.{key}", str(value), [str(each) for each in known]))
    for key, least in stated.at_least.items():
        value = stated.options.get(key)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= least:
            raise InputError(f"strategy.options.{key}={value} should be at least {least:g}")


def _fits(value: Any, default: Any) -> bool:
    if default is None or value is None:
        return default is None
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(default)
