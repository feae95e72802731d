"""What the probes of a rank measure: profiles, collective operations, transfers and the parts of a step."""

from __future__ import annotations

import msgspec


class ProfiledOperation(msgspec.Struct):
    """One kind of operation in the profile of some steps, all its calls together."""

    name: str
    calls: float  # per step
    self_s: float  # per step: its own time without the operations it called, summed over threads and devices
    collective: bool = False  # moves data between devices
    device: str = "cpu"  # cpu | cuda: where it ran


class GpuTime(msgspec.Struct):
    """The time of a GPU in one step under the profiler, by unions of intervals. compute_s + communication_s - hidden_s
    + copy_s and the waits add up to the step."""

    compute_s: float  # kernels but NCCL's
    communication_s: float  # NCCL's kernels, which spin while they wait for their peers
    hidden_s: float  # of communication_s, while kernels computed
    copy_s: float  # copies and fills of memory while no kernel ran
    host_wait_s: float | None  # nothing ran, and the host had not started the next kernel or copy yet
    kernel_wait_s: float | None  # nothing ran, though the next one had been started
    kernels: float  # that ran


class Profile(msgspec.Struct):
    """Some steps under the framework's own profiler, which slows them down: compare times with each other only."""

    steps: int
    step_s: float  # wall seconds of one step under the profiler
    kernel_s: float | None = None  # own time of all operations of one step, on GPUs if there are any, else on the CPU
    collective_s: float | None = None  # of that, in operations that move data between devices
    operations: list[ProfiledOperation] = []  # those with the most own time, in this order
    gpu: GpuTime | None = None  # mean over the GPUs of this process


COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
# Their data are parts, one per rank.
PER_RANK_COLLECTIVES = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


class CollectiveRecord(msgspec.Struct):
    """Times of one collective operation on one message size."""

    name: str  # of COLLECTIVES
    size_bytes: int  # by the convention of nccl-tests: docs/reference/results.md
    repeats: int = 0  # operations in each block
    block_s: list[float] = []


class TransferRecord(msgspec.Struct):
    """Times of one kind of transfer between devices, or with host memory; ranks stand for their devices."""

    kind: str  # as in docs/reference/results.md: send_one_way, memcpy, ...
    source: int | None  # rank; null: all of them at once
    target: int | None  # rank; equal to source for a device and its host memory
    size_bytes: int  # of one transfer in one direction
    repeats: int = 0  # transfers in each block
    block_s: list[float] = []


class ProbeRecord(msgspec.Struct):
    """The measurements of the probes on one rank: wall seconds of blocks that begin together on all ranks."""

    reasons: dict[str, str] = {}  # quantity -> why it was not measured
    steps: int | None = None  # steps in each block of the next three, which were interleaved
    sync_on_s: list[float] = []  # with gradient synchronization and the real feed
    sync_off_s: list[float] = []  # without gradient synchronization
    fixed_batch_s: list[float] = []  # as sync_off_s (else sync_on_s), on one fixed batch
    local_step_s: list[list[float]] = []  # by device: single steps without synchronization
    isolated_sync_repeats: int | None = None
    isolated_sync_s: list[float] = []  # gradient synchronization by itself
    part_steps: int | None = None  # steps in each block of the next three, each of which includes the previous one
    forward_s: list[float] = []
    backward_s: list[float] = []  # forward and backward
    optimizer_s: list[float] = []  # the complete step, without synchronization
    copy_repeats: int | None = None
    copy_s: list[float] = []  # batches copied from host memory to the devices
    profile: Profile | None = None
    trace: str | None = None  # this rank's file in the run's folder, measure.trace=true
    collectives: list[CollectiveRecord] = []  # measure.collectives=true
    bandwidth: list[TransferRecord] = []  # measure.bandwidth=true
