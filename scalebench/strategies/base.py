"""The contract of a strategy: how it trains (Strategy), and the optional measurements of its steps (Probes)."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import socket
import statistics
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol, TypeVar

from numpy.typing import NDArray

from scalebench.core.errors import InputError, PluginError, check_type, suggest_names, unknown_name_message
from scalebench.core.probe_record import Profile
from scalebench.core.process import LISTEN_ADDRESS
from scalebench.core.result import ScriptRecord, StageRecord
from scalebench.core.spec import RankPlacement, RunSpec, StrategySpec

if TYPE_CHECKING:
    from scalebench.workloads.source import Source

STAGE_REPEATS = 5  # of the passes of a stage by itself, which are timed
MAX_MEASURING_S = 10.0  # no more repeats after this time
FORWARD, BACKWARD, OPTIMIZER = PARTS = ("forward", "backward", "optimizer")
T = TypeVar("T")
GroupSum = Callable[[list[float]], list[float]]  # sums of the values over all ranks, each of which must call it


class Unsupported(Exception):
    """The run is valid but impossible on this machine; the message is the reason, in one sentence."""


class NotMeasured(Exception):
    """A probe is impossible with this strategy or on this machine; the message is the reason, in one sentence."""


class WrongGroup(RuntimeError):
    """The processes of the run have not formed one group that trains together: whatever they measure is not a run."""


class LossPart(NamedTuple):
    """One process's share of the loss of a step. Where several processes train on the same samples, as the stages of
    one model do, one of them returns it and the others return None."""

    loss_sum: Any  # float or a lazy scalar of the framework: the sum over this process's samples; None: not known
    samples: int
    pause: str = ""  # what beside training its time includes: saving, evaluation
    data_s: float = 0.0  # of it, spent in waiting for samples; 0 where the strategy does not measure it


class Loop(Protocol):
    """An iterable of batches that counts the finished steps and times blocks of them."""

    def __iter__(self) -> Iterator[Any]: ...

    def done(self, part: LossPart | None) -> bool:
        """Count one step that was issued. True when the loop is over."""


class BatchReplay:
    """A Loop that yields one batch for a number of steps and collects their losses in `parts`. It calls `after_step`
    with the number of steps so far, also before the first one."""

    def __init__(self, batch: Any, steps: int, after_step: Callable[[int], None] = lambda number: None) -> None:
        self.parts: list[LossPart | None] = []
        self._batch, self._steps, self._after_step = batch, steps, after_step

    def __iter__(self) -> Iterator[Any]:
        self._after_step(0)
        while len(self.parts) < self._steps:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self.parts.append(part)
        self._after_step(len(self.parts))
        return len(self.parts) >= self._steps


class Probes:
    """The measurements after the headline figures.

    Every method is optional: where a strategy has none of its own, the result has null and the reason. Each is called
    on all ranks.
    """

    spec: RunSpec  # set by Strategy

    def not_measured(self, reason: str) -> NotMeasured:
        """Return an exception whose message is the strategy's name and the reason."""
        return NotMeasured(f"{self.spec.config.strategy.name} {reason}")

    def set_gradient_sync(self, on: bool) -> None:
        """Switch gradient synchronization off or on again; called between blocks."""
        raise self.not_measured("cannot train without its exchange")

    def why_new_batches(self) -> str | None:
        """Return why each step reads new samples, also where a batch is used again; None where it does not."""
        return None

    def model_remarks(self) -> dict[str, str]:
        """Return sentences on a user's model, by flag; empty if there is nothing to say."""
        return {}

    def message_sizes(self) -> list[int]:
        """Return the bytes of each message of one step after fusion; called after warm-up. Empty: unknown."""
        return []

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Synchronize buffers of these sizes (bytes) in the way that the strategy synchronizes gradients."""
        raise self.not_measured("has no exchange of its own")

    def partial_step(self, batch: Any, until: str) -> None:
        """Train a step up to and including one of PARTS, without synchronization, which is switched off before if the
        strategy can. Spoils the weights."""
        raise self.not_measured("does not take an update apart")

    def local_step(self, batch: Any) -> list[float]:
        """Return the seconds that each device of this process works on its part of one step, up to synchronization.
        With one device per process, a step with synchronization switched off measures the same."""
        raise self.not_measured("does not tell its devices apart")

    def copy_batch(self, batch: Any) -> None:
        """Copy as many bytes as `batch` has from host memory to the devices, in the way of `feed`."""
        raise NotMeasured("a batch is used where it lies: nothing is copied to a device")

    def profile(self, steps: int, trace: Path | None) -> Profile:
        """Train that many more steps on the last batch under the framework's profiler. With `trace`, write a gzipped
        Chrome trace to it, whose `ts` are microseconds since the epoch, or since the baseTimeNanoseconds in it.
        Spoils the weights."""
        raise self.not_measured("has no profiler")

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        """Return an action that does a collective operation (see core.probe_record) once on buffers of this size, with
        the strategy's backend; `synchronize` waits for it."""
        raise self.not_measured("has no collective operations of its own")

    def transfer(self, kind: str, source: int | None, target: int | None, size_bytes: int) -> Callable[[], None]:
        """Return an action that does this rank's part of one transfer (see core.probe_record), or nothing if it has
        none; `synchronize` waits for it. Every rank calls this with equal arguments; all or none raise NotMeasured."""
        raise self.not_measured("measures no bandwidth; strategies with PyTorch do")

    def sync_phases(self) -> tuple[int, dict[str, float]]:
        """Observe a few more steps, and return their number and the seconds of each phase of gradient synchronization
        in a step, by the names of core.result.TimelineRecord. Spoils the weights."""
        raise self.not_measured("has no phases of its own")

    def record_timeline(self, path: Path, steps: int) -> dict[str, float]:
        """Train that many more steps while the framework writes a timeline of its communication, which one rank stores
        at `path`. Returns the seconds of each phase of a step by name. Spoils the weights."""
        raise self.not_measured("has no timeline of its own")

    def settings_used(self) -> dict[str, str]:
        """Observe which precision, data_format and compiler the steps really ran with, under these names; what cannot
        be determined is left out. Read after the training, and may train further steps."""
        return {}

    def left_out(self) -> list[str]:
        """Return the names of hooks of a user's module that its steps leave out, and that other strategies may run."""
        return []

    def threads_used(self) -> int | None:
        """Return the number of threads within an operation, which a user's file may have changed; None: not known."""
        return None

    def stages(self) -> list[StageRecord]:
        """Return the stages of the model on the devices of this process, if none holds all of it, and the time of each
        by itself. Called after the training; may train further steps on its last batch. Spoils the weights."""
        return []

    def state_bytes(self) -> list[int | None]:
        """Return for each device of this process the bytes of weights, gradients and optimizer state that are kept from
        step to step; None if that cannot be determined, never 0. Empty: no figures. Called after the training."""
        return []

    def num_params(self) -> int | None:
        """Return the number of trainable parameters of the full model; None if there is no model."""
        return None

    def flops_per_sample(self) -> float | None:
        """Return the FLOPs of training on one sample of a user's model, 2 per multiply-add, counted when it was built;
        None if they are unknown. Those of other models are counted from their description."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Return the weights as numpy arrays under the neutral names of workloads.network."""
        raise self.not_measured("does not show its weights")

    def script_record(self) -> ScriptRecord | None:
        """Return what was seen of a user's program; None where there is none."""
        return None

    def versions(self) -> dict[str, str]:
        """Return the versions of the framework and the libraries that this process loaded."""
        return {}


class Strategy(Probes, ABC):
    """One way of training a workload on several devices. It lives in one worker process.

    It never measures, prints or writes files, and never changes a batch size on its own.
    """

    has_program: ClassVar[bool] = False  # a program of the user's owns the loop and the main thread: `run_program`
    has_ended: bool = False  # that program, which then shows nothing more
    sign_of_life: Callable[[], None] = staticmethod(lambda: None)  # set by the session: call it in a long wait

    def __init__(self, spec: RunSpec, rank: int) -> None:
        """`spec` is the run, `rank` the number of this process in it."""
        self.spec = spec
        self.place: RankPlacement = spec.places[rank]
        self.options = SimpleNamespace(**spec.config.strategy.options)  # all of its YAML, checked

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
        """Return rank 0's value on every rank, when every rank has called it, so that all stop at the same step.

        After setup, each rank checks by it that it is in one group with rank 0.
        """

    @abstractmethod
    def backend_used(self) -> str | None:
        """Observe which backend carried the gradients, rather than assume it; None: nothing was sent."""

    @abstractmethod
    def evaluate(self, source: Source) -> dict[str, float]:
        """Compute validation metrics over all of `source`, the same on every rank."""

    def peak_memory_bytes(self) -> list[int | None]:
        """The peak of each device of this process; None where it cannot be determined, never 0."""
        return [None for _ in self.place.devices]

    def reserved_memory_bytes(self) -> list[int | None]:
        """Return the peak of what the allocator took from each device, which must fit; None where it is unknown.

        Tensors need `peak_memory_bytes` of it.
        """
        return [None for _ in self.place.devices]

    def allocator_retries(self) -> int | None:
        """Return how often the allocators of this process's devices found the memory full, gave back their cache and
        tried again, which costs time; None where they do not count it."""
        return None

    def free_memory(self) -> None:
        """Give back to the devices what closed strategies of this process no longer need."""
        gc.collect()

    def begin_phase(self, name: str) -> None:
        """Called at the beginning of each phase of the measured loop, on every rank at the same step."""

    def explain_early_end(self, steps: int) -> Exception:
        """Return the error of a `train` that came back before its loop was over, after so many steps."""
        return RuntimeError(
            f"{self.spec.config.strategy.name} ended the training too early, after {steps} steps: was that a hook, a "
            "callback or a limit of its trainer?"
        )

    def run_program(self) -> None:
        """Run the user's program in the main thread, while the session runs in another one and ends the process. Only
        of a strategy that `has_program`."""

    def learning_rate(self) -> float | None:
        """Return the peak of the learning rate; None where parts of the model have different ones. Read after setup."""
        return self.spec.learning_rate

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


def never_measured(reason: str) -> Callable[..., Any]:
    """Return a method in place of a probe that is impossible with a strategy: it raises NotMeasured."""

    def refuse(self: Probes, *arguments: Any) -> NoReturn:
        raise self.not_measured(reason)

    return refuse


def create_on_all_ranks(
    create: Callable[[], T], sum_over_group: GroupSum, failures: tuple[type[Exception], ...], reason: str
) -> T:
    """Return the result of `create` if it succeeds on every rank; else raise NotMeasured(reason) on all of them.

    Ranks that took different paths would wait for each other until the timeout. `failures` are the exceptions that
    mean it has not succeeded; all others are raised. `sum_over_group` returns sums over the ranks. Every rank must call
    this function.
    """
    created: list[T] = []
    with contextlib.suppress(*failures):  # reported below, once all ranks know of it
        created.append(create())
    if sum_over_group([float(not created)])[0]:
        raise NotMeasured(reason)
    return created[0]


def measure_median_s(action: Callable[[], None], synchronize: Callable[[], None], repeats: int) -> float:
    """Return the median seconds of an action, after one call for warming up."""
    seconds: list[float] = []
    action()
    while len(seconds) < repeats and sum(seconds) < MAX_MEASURING_S:
        synchronize()
        start_s = time.perf_counter()
        action()
        synchronize()
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def refuse_other_weights(
    arrays: Iterable[NDArray[Any]],
    label: str,
    library: str,
    broadcast: Callable[[float], float],
    sum_over_group: GroupSum,
) -> None:
    """Raise PluginError on all ranks if the weights of any rank differ from rank 0's, by a checksum of 32 bits, which a
    float64 represents exactly. `label` names the user's function, `library` where it should draw them from."""
    checksum = functools.reduce(lambda so_far, array: zlib.crc32(array.data, so_far), arrays, 0)
    (different_ranks,) = sum_over_group([float(broadcast(float(checksum)) != checksum)])
    if different_ranks:
        raise PluginError(
            f"{label} gives other weights on every rank: draw them from {library}, numpy.random or random, which are "
            "seeded"
        )


def not_measured_if_unsupported(error: Exception, library: str, operation: str) -> NotMeasured:
    """Return NotMeasured if `error` says that a library lacks an operation, on every rank; else raise the error."""
    if "support" not in str(error).lower() and not isinstance(error, NotImplementedError):
        raise error
    message = str(error).partition("\n")[0].strip() or type(error).__name__
    return NotMeasured(f"{library} has no {operation}: {message}")


def check_group(spec: RunSpec, rank: int, library: str, position: tuple[int, int], way_out: str = "") -> None:
    """Raise WrongGroup unless the `library` that formed this process's group has it at its place in the run.

    `position` is (rank, size) as the library itself reports them. A strategy calls this as soon as it has joined.
    """
    if position != (rank, spec.processes):
        raise WrongGroup(
            f"{library} has rank {rank} of {spec.processes} as rank {position[0]} of {position[1]}, so that the ranks "
            f"would not train together{way_out and '; '}{way_out}"
        )


def listen_address() -> str:
    """Return the address on which rank 0 listens for the other ranks, which connect to MASTER_ADDR."""
    return os.environ.get(LISTEN_ADDRESS, os.environ["MASTER_ADDR"])


def listen_for_ranks(port: int) -> socket.socket:
    """Return rank 0's listening socket, on any free port where `port` is 0; RuntimeError where the port is taken.

    A socket that a framework opens itself listens on all interfaces, and serves any host that reaches it.
    """
    try:
        address = listen_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise RuntimeError(f"port {port} of the rendezvous was taken by another program; run it again") from None


def check_options(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise InputError for an unknown key, with the nearest one, or for a value of another type than its default."""
    for key, value in options.items():
        if key not in defaults:
            raise InputError(f"strategy {name} has no option '{key}'; {suggest_names(key, defaults)}")
        check_type(f"strategy.options.{key}", value, defaults[key])


def check_values(spec: StrategySpec) -> None:
    """Raise InputError for a value that is not one of its choices, or below its minimum; the strategy decides for
    None."""
    for key, choices in spec.choices.items():
        value = spec.options.get(key)
        if value is not None and value not in choices:
            raise InputError(
                unknown_name_message(f"strategy.options.{key}", str(value), [str(choice) for choice in choices])
            )
    for key, minimum in spec.at_least.items():
        value = spec.options.get(key)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= minimum:
            raise InputError(f"strategy.options.{key}={value} should be at least {minimum:g}")
