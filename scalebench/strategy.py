"""The contract between the neutral core and the framework adapters. Layer 1."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from scalebench.api import api
from scalebench.probe_records import Profile
from scalebench.spec import InputError, Place, RunSpec, StrategySpec
from scalebench.stage_records import StageRecord
from scalebench.suggest import no_such
from scalebench.workloads.source import Batch, Source

FORWARD, BACKWARD, OPTIMIZER = PARTS = ("forward", "backward", "optimizer")


@api(since=1)
class Unsupported(Exception):
    """This well-formed run is impossible here; the message is the reason, in one sentence."""


@api(since=1)
class LossPart(NamedTuple):
    """What one process adds to the loss of one update. Of processes that train on the same samples together, as the
    stages of one model do, one tells them and the others None."""

    loss_sum: Any  # float or a lazy scalar of the framework: the sum over this process's samples
    samples: int


@api(since=1)
class Loop(Protocol):
    """Hands out batches and is told of each finished update; it times blocks of updates."""

    def __iter__(self) -> Iterator[Any]: ...

    def done(self, part: LossPart | None) -> bool:
        """One update was issued. True when the loop is over."""


@api(since=1)
@dataclass
class NoOptions:
    """For strategies that have nothing to set."""


@api(since=1)
class Strategy(ABC):
    """One way of training a workload on several devices. Lives in one worker process.

    Never measures, prints or writes files; never changes a batch size on its own.
    """

    Options: ClassVar[type] = NoOptions  # dataclass; its fields are the keys under strategy.options
    reads_in_step: ClassVar[bool] = False  # samples are read within `step`, so that a batch held fast is read anew

    def __init__(self, spec: RunSpec, rank: int) -> None:
        """`spec` is the run, `rank` which of its processes this is."""
        self.spec = spec
        self.place: Place = spec.places[rank]
        self.options: Any = parse_options(type(self), spec.config.strategy)

    @abstractmethod
    def setup(self) -> None:
        """Join the group; build model and optimizer. Raises Unsupported(reason) if impossible."""

    def shard(self) -> tuple[int, int]:
        """(replica, replicas): which part of each global batch this process reads."""
        return self.place.rank, self.spec.processes

    def feed(self, source: Source) -> Iterable[Any]:
        """numpy batches -> what `step` takes: tensors, pinned, placed, prefetched."""
        return source

    def train(self, loop: Loop) -> None:
        """Train until the loop is over. Adapters that own their loop report to `loop` from a callback."""
        for batch in loop:
            loop.done(self.step(batch))

    @abstractmethod
    def step(self, batch: Any) -> LossPart | None:
        """One update of the group. The loss is lazy and fetched at block ends; None: no loss here."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device work issued so far; never called inside a timed block."""

    @abstractmethod
    def broadcast(self, value: float) -> float:
        """Rank 0's value on every rank, so that all stop at the same step; comes back when every rank has called it."""

    def exchange(self, on: bool) -> None:
        """Gradient exchange off and on again, called between blocks; Unsupported if impossible."""
        raise Unsupported(f"{self.spec.config.strategy.name} cannot train without its exchange")

    def set_learning_rate(self, rate: float) -> None:
        """Of the updates from now on; called between two of them, also within `train`."""
        raise Unsupported(
            f"{self.spec.config.strategy.name} keeps its learning rate: leave out train.schedule and warm-up"
        )

    def message_sizes(self) -> list[int]:
        """Bytes of each message of one update after fusion; read after warm-up."""
        return []

    def run_exchange(self, sizes: list[int]) -> None:
        """The strategy's own kind of exchange on buffers of these sizes (bytes)."""
        raise Unsupported(f"{self.spec.config.strategy.name} has no exchange of its own")

    def partial_step(self, batch: Any, until: str) -> None:
        """An update of this process up to and with that one of PARTS, exchanging nothing; called with the exchange off
        where it can be. Spoils the weights."""
        raise Unsupported(f"{self.spec.config.strategy.name} does not take an update apart")

    def local_step(self, batch: Any) -> list[float]:
        """For a process with several devices: seconds that each of them works on its part of one update, up to where
        they would exchange. With one device per process an update with the exchange off tells that."""
        raise Unsupported(f"{self.spec.config.strategy.name} does not tell its devices apart")

    def copy_batch(self, batch: Any) -> None:
        """Copy as many bytes as `batch` has from host memory to the devices, as `feed` does."""
        raise Unsupported("a batch is used where it lies: nothing is copied to a device")

    def profile(self, updates: int, trace: Path | None) -> Profile:
        """Train so many updates more on the last batch under the framework's profiler; with `trace`, leave a Chrome
        trace there, gzipped, whose `ts` are microseconds since the epoch, or since the baseTimeNanoseconds in it.
        Spoils the weights."""
        raise Unsupported(f"{self.spec.config.strategy.name} has no profiler")

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        """An action that does the named collective operation (probe_records.Collective) once on buffers of this size,
        as this strategy's backend does it, and is waited for by `synchronize`."""
        raise Unsupported(f"{self.spec.config.strategy.name} has no collective operations of its own")

    def transfer(self, kind: str, source: int | None, target: int | None, size_bytes: int) -> Callable[[], None]:
        """An action that does this rank's part of one transfer (probe_records.Transfer), or nothing where it has none,
        and is waited for by `synchronize`. Every rank asks for the same; Unsupported on all of them alike."""
        raise Unsupported(f"{self.spec.config.strategy.name} measures no bandwidth; strategies with PyTorch do")

    @abstractmethod
    def backend_used(self) -> str | None:
        """What really carried the gradients, found out and not assumed; None: nothing was exchanged."""

    @abstractmethod
    def evaluate(self, source: Source) -> dict[str, float]:
        """Validation metrics over the whole of `source`, the same on every rank."""

    def settings_used(self) -> dict[str, str]:
        """Which precision, data_format and compiler updates really ran with, under these names, found out and not
        assumed; what cannot be told is left out. Read after the training, which it may go on with."""
        return {}

    def keep_timeline(self, path: Path, updates: int) -> dict[str, float]:
        """Train so many updates more while the framework writes a timeline of their exchange, which one rank keeps at
        `path`; seconds of each phase of an update, by the fields of results.Timeline. Spoils the weights."""
        raise Unsupported(f"{self.spec.config.strategy.name} has no timeline of its own")

    def num_params(self) -> int | None:
        """Trainable parameters of the whole model; None when there is no model."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Weights as numpy arrays under the neutral names of workloads.network."""
        raise Unsupported(f"{self.spec.config.strategy.name} does not show its weights")

    def peak_memory_bytes(self) -> list[int | None]:
        """Per device of this process; None = cannot be told, never 0."""
        return [None for _ in self.place.devices]

    def state_bytes(self) -> list[int | None]:
        """Per device of this process: weights, gradients and optimizer's state that it keeps from update to update.
        None = cannot be told, never 0. Read after the training."""
        return [None for _ in self.place.devices]

    def stages(self) -> list[StageRecord]:
        """Which parts of the model this process' devices hold, where none holds all of it, and how long each of them
        works by itself. Read after the training, on whose last batch it may go on; spoils the weights."""
        return []

    def versions(self) -> dict[str, str]:
        """Of the framework and the libraries that this process really loaded."""
        return {}

    def serve(self) -> None:
        """The life of a process in another role than chief: it serves the chief until it is ended from outside."""
        raise Unsupported(f"{self.spec.config.strategy.name} has no process that serves others")

    def close(self) -> None:
        """Leave the group. May be called twice, also after a failed setup."""


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


__all__ = ["Batch", "LossPart", "Loop", "NoOptions", "Strategy", "Unsupported", "parse_options"]
