"""What the probes of one process measured after the headline figures: raw series, of which probed.py makes figures.

Layer 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Operation:
    """One kind of operation in the profile of some updates, all its calls together."""

    name: str
    calls: float  # of one update
    self_s: float  # of one update: its own time, without what it called, added up over threads and devices
    collective: bool = False  # carries data between devices
    device: str = "cpu"  # cpu | cuda: where it ran


@dataclass
class Profile:
    """Some updates as the framework's own profiler saw them. It slows them down: times are shares of each other."""

    updates: int
    step_s: float  # wall seconds of one update under the profiler
    kernel_s: float | None = None  # own time of all operations of one update, on GPUs if there are any, else on the CPU
    collective_s: float | None = None  # of these, in operations that carry data between devices
    operations: list[Operation] = field(default_factory=list)  # those with the largest own time, largest first


COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
IN_PARTS = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")  # of which each rank has one


@dataclass
class Collective:
    """One collective operation on one size of message."""

    name: str  # of COLLECTIVES
    size_bytes: int  # by the convention of nccl-tests: docs/collectives.md
    repeats: int = 0  # operations in each block
    block_s: list[float] = field(default_factory=list)


@dataclass
class Transfer:
    """Bytes on one way between devices, or between them and host memory; ranks stand for their devices."""

    kind: str  # of docs/collectives.md: send_one_way, memcpy, ...
    source: int | None  # rank; null: all of them at once
    target: int | None  # rank; the same as source where a device and its host memory are meant
    size_bytes: int  # of one transfer in one direction
    repeats: int = 0  # transfers in each block
    block_s: list[float] = field(default_factory=list)


@dataclass
class Probes:
    """Blocks of wall seconds, as this process saw them. Blocks of all ranks begin together."""

    reasons: dict[str, str] = field(default_factory=dict)  # quantity -> why it was not measured
    steps: int | None = None  # updates in each of the next three, which took turns
    on_s: list[float] = field(default_factory=list)  # with the exchange and the real feed
    off_s: list[float] = field(default_factory=list)  # without the exchange
    fixed_s: list[float] = field(default_factory=list)  # as off_s, or as on_s where that is empty, on one batch
    local_step_s: list[list[float]] = field(default_factory=list)  # by device: single updates, nothing exchanged
    exchange_repeats: int | None = None
    exchange_s: list[float] = field(default_factory=list)  # the exchange alone
    part_steps: int | None = None  # of the next three, each of which holds the one before
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)  # forward and backward
    optimizer_s: list[float] = field(default_factory=list)  # the whole update, without an exchange
    copy_repeats: int | None = None
    copy_s: list[float] = field(default_factory=list)  # batches copied from host memory to the devices
    profile: Profile | None = None
    trace: str | None = None  # this rank's file in the run's folder, measure.trace=true
    collectives: list[Collective] = field(default_factory=list)  # measure.collectives=true
    bandwidth: list[Transfer] = field(default_factory=list)  # measure.bandwidth=true
