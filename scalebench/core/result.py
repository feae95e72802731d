"""The record: what one run leaves, as dataclasses; written, validated and read as result.json. Layer 0.

Raw figures per rank are stored; speedup, efficiency and intervals are computed on load (frame.py).
Units stand in the names; null means not measured. A new nullable field keeps the version.
"""

from __future__ import annotations

import dataclasses
import json
import stat
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json, read_record, write_json
from scalebench.core.machine.machine import Machine
from scalebench.core.run_folder import RESULT_FILE

SCHEMA_VERSION = 2
SCHEMA_PATH = Path(__file__).with_name("result.schema.json")
STATUSES = ("ok", "failed", "oom", "timeout", "unsupported", "cancelled")
Status = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(STATUSES)})]
Version = Annotated[int, msgspec.Meta(extra_json_schema={"const": SCHEMA_VERSION})]


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

    steps: int
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
class ProbeRecord:
    """Blocks of wall seconds, as this process saw them. Blocks of all ranks begin together."""

    reasons: dict[str, str] = field(default_factory=dict)  # quantity -> why it was not measured
    steps: int | None = None  # updates in each of the next three, which took turns
    sync_on_s: list[float] = field(default_factory=list)  # with the exchange and the real feed
    sync_off_s: list[float] = field(default_factory=list)  # without the exchange
    fixed_batch_s: list[float] = field(default_factory=list)  # as sync_off_s, or as sync_on_s where that is empty, on one batch
    local_step_s: list[list[float]] = field(default_factory=list)  # by device: single updates, nothing exchanged
    isolated_sync_repeats: int | None = None
    isolated_sync_s: list[float] = field(default_factory=list)  # the exchange alone
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


@dataclass
class DeviceMonitor:
    """One GPU of the run. `_mean`: over time."""

    index: int  # NVML's
    gpu_util_mean: float | None = None  # share of the time in which something ran on it
    memory_util_mean: float | None = None  # share of the time in which its memory was read or written
    memory_used_bytes_max: int | None = None
    gpu_power_w_mean: float | None = None
    energy_j: float | None = None
    energy_from: str | None = None  # counter: the GPU's own | power: the integral of its samples
    sm_clock_mhz_min: float | None = None
    sm_clock_mhz_mean: float | None = None
    mem_clock_mhz_min: float | None = None
    mem_clock_mhz_mean: float | None = None
    temperature_c_max: float | None = None
    throttle_reasons: list[str] | None = None  # as nvidia-smi names them; empty: nothing held its clocks back
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None
    lost_at_s: float | None = None  # seconds since the epoch; null: it was there to the end
    node: int | None = None  # whose GPU it is; null: that of the only machine


@dataclass
class Monitor:
    """The devices of the run together, its processes, and the machines that it ran on, added up."""

    file: str | None = None  # the whole series, in the run's folder; that of node 0, where others have their own
    reason: str | None = None  # why there is no series, or what is missing from it
    gpu_util_mean: float | None = None  # over time and devices
    gpu_power_w_mean: float | None = None  # over time, all devices together
    energy_j: float | None = None  # all devices together
    energy_from: str | None = None  # counter | power | counter+power
    sm_clock_mhz_min: float | None = None
    sm_clock_mhz_mean: float | None = None
    mem_clock_mhz_min: float | None = None
    mem_clock_mhz_mean: float | None = None
    gpu_temperature_c_max: float | None = None
    throttle_reasons: list[str] | None = None
    cpu_util_mean: float | None = None  # share of the cores that the run may use, whoever used them
    cpu_util_ours_mean: float | None = None  # the same, used by the ranks and what they started
    cpu_cores_others_mean: float | None = None  # cores' worth used by programs that do not belong to the run
    rss_bytes_max: int | None = None  # sum over the ranks
    rss_anon_bytes_max: int | None = None  # without mapped files, which the ranks share
    memory_available_bytes_min: int | None = None  # of any node
    swap_in_bytes: int | None = None  # of the whole machines, as is what follows
    swap_out_bytes: int | None = None
    net_sent_bytes_per_s: float | None = None  # all interfaces but the loopback
    net_received_bytes_per_s: float | None = None
    loopback_bytes_per_s: float | None = None
    infiniband_sent_bytes_per_s: float | None = None
    infiniband_received_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    devices: list[DeviceMonitor] = field(default_factory=list)


@dataclass
class CurvePoint:
    """Where a training stood when it was evaluated, between two updates."""

    step: int  # updates so far
    epochs: float  # passes over the training samples so far
    samples: int  # of all replicas, so far
    train_s: float  # seconds of all updates but the first, which compiles; what lies between updates is not in it
    learning_rate: float  # of the last update
    loss: float | None  # training loss, mean per sample over the updates since the point before
    loss_samples: int  # that it is a mean over
    metrics: dict[str, float] = field(default_factory=dict)  # of the validation part; empty: there is none
    train_metrics: dict[str, float] = field(default_factory=dict)  # likewise of as many samples that were trained on
    evaluate_s: float = 0.0  # that this evaluation took
    at_s: float = 0.0  # when it began, seconds since the epoch


@dataclass
class StageRecord:
    """One stage of a model that is cut into several, one behind the other. Bytes and seconds are of one update."""

    index: int  # from the input on
    stages: int  # that the model is cut into
    replica: int  # which of the chains of stages this one is part of
    first: str  # name of its first operation
    last: str
    parameter_bytes: int
    micro_batches: int  # that a batch goes through the stages in
    sent_bytes: int | None = None  # activations that go on to the next stage; null: it is the last one
    work_s: float | None = None  # forward and backward of all micro-batches by itself; null: not measured


@dataclass
class Timeline:
    """What the framework itself wrote of some exchanges after the figures were taken, for its writer costs time.

    Seconds of an update in which at least one tensor was in the phase; phases overlap.
    """

    file: str | None = None  # in the run's folder
    reason: str | None = None  # why there is none
    steps: int | None = None
    negotiate_s: float | None = None  # from the first rank's announcement of a tensor to the last's
    queue_s: float | None = None
    memcpy_s: float | None = None  # in and out of the buffer that fused tensors travel in
    allreduce_s: float | None = None


@dataclass
class RankRecord:
    """What one process measured: rank<k>.json."""

    rank: int
    hostname: str
    pid: int
    status: Status = "ok"
    reason: str | None = None
    failed_at_s: float | None = None  # seconds since the epoch
    marks_s: dict[str, float] = field(default_factory=dict)  # start of each phase, seconds since the epoch
    block_steps: int | None = None
    block_s: list[float] = field(default_factory=list)  # measured blocks, steady state
    block_samples: list[int] = field(default_factory=list)  # of this process
    block_losses: list[float | None] = field(default_factory=list)  # mean per sample; null: no loss here
    steady_after_steps: int | None = None  # updates until steady state was found; null: not within the bounds
    warmup_block_steps: int | None = None
    warmup_block_s: list[float] = field(default_factory=list)
    warmup_losses: list[float | None] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)  # of a training that goes to a stop; losses of this process
    stopped_by: str | None = None  # epochs | steps | seconds | target
    first_step_s: float | None = None  # of such a training: what compiling takes is in it
    message_bytes: list[int] = field(default_factory=list)
    timeline: Timeline | None = None
    probes: ProbeRecord | None = None
    backend_used: str | None = None
    settings_used: dict[str, str] = field(default_factory=dict)  # precision, data_format, compiler
    params: int | None = None
    train_samples: int | None = None  # of the whole data set, all replicas
    steps_per_epoch: int | None = None
    threads: int | None = None
    affinity: list[int] = field(default_factory=list)
    peak_memory_bytes: list[int | None] = field(default_factory=list)
    state_bytes: list[int | None] = field(default_factory=list)  # weights, gradients, optimizer's state; by device
    stages: list[StageRecord] = field(default_factory=list)  # that its devices hold; none: all of the model
    rss_peak_bytes: int | None = None
    rss_anon_peak_bytes: int | None = None  # without mapped files; the largest seen between blocks
    cpu_s: float | None = None  # processor time of this process
    clock_offset_s: float | None = None  # this host's clock minus rank 0's; null: the same host, or not measured
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class Workload:
    model: str
    model_params: int | None
    gradient_bytes: int | None
    flops_per_sample: float | None
    dataset: str
    train_samples: int | None
    steps_per_epoch: int | None
    feed: str
    prefetch: str
    input_shape: list[int]
    precision: str  # requested, as are the next two
    data_format: str
    compile: bool = False
    precision_used: str | None = None
    data_format_used: str | None = None
    compiler_used: str | None = None  # inductor | xla | none


@dataclass
class Scale:
    strategy: str
    framework: str
    framework_version: str | None
    backend_requested: str | None
    backend_used: str | None
    hardware: str
    device: str
    gpus: int
    nodes: int
    processes: int
    scaling: str
    batch_per_device: int
    global_batch: int
    lockstep: bool
    repeat: int
    seed: int
    baseline_bare: str | None


@dataclass
class Phases:
    """Wall seconds of each phase on rank 0; launch is from the start of the processes to their first line."""

    launch_s: float | None = None
    setup_s: float | None = None
    warmup_s: float | None = None
    measure_s: float | None = None
    evaluate_s: float | None = None
    probes_s: float | None = None
    close_s: float | None = None
    wall_s: float | None = None


@dataclass
class Sync:
    """What was exchanged. How long it took is in the ranks' probes, of which probed.py makes figures."""

    message_bytes: list[int] = field(default_factory=list)
    timeline: Timeline | None = None  # measure.timeline=true
    transports: dict[str, str] | None = None  # of NCCL by pair of ranks, where its log tells (NCCL_DEBUG=INFO)


@dataclass
class BatchTried:
    """One try in the search for the largest batch."""

    batch_per_device: int
    status: str  # ok: it fits | oom
    reason: str | None
    peak_memory_bytes: int | None  # of the device that took most; null: it cannot be told
    rss_anon_bytes_max: int | None  # of the rank that took most
    throughput_samples_per_s: float | None


@dataclass
class MaxBatch:
    """The search for the largest batch that fits."""

    batch_per_device: int | None  # null: not even one sample fits
    limit_bytes: int | None  # that each process was held to; null: the device's own memory
    bounded_by: str  # memory | data: the data set has no larger batch
    tried: list[BatchTried]  # in their order


@dataclass
class Quality:
    final_loss: float | None = None  # mean per sample over the last measured block, all ranks
    metric_name: str | None = None
    metric: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    time_to_target_s: float | None = None  # of training, at the first point of the curve that is as good
    curve: list[CurvePoint] = field(default_factory=list)  # of all ranks: seconds of the slowest, mean of the losses
    stopped_by: str | None = None  # epochs | steps | seconds | target; null: the run measured its throughput
    first_step_s: float | None = None
    learning_rate: float | None = None  # the highest: as asked, by the rule for this batch
    max_batch: MaxBatch | None = None  # measure.search=max_batch


@dataclass
class SchedulerRecord:
    """The job that a run was, where a scheduler gave it its nodes."""

    name: str  # slurm
    job_id: str
    partition: str | None = None
    nodes: list[str] = field(default_factory=list)  # names, in the order of the run's nodes
    queued_s: float | None = None  # from submission to the start of the job
    state: str | None = None  # in the scheduler's own word, when it was over
    reason: str | None = None


@dataclass
class Result:
    """One run, also a failed one."""

    schema_version: Version
    run_id: str
    started_at: str  # ISO 8601, UTC
    status: Status
    reason: str | None
    log: str | None  # of the rank that failed, relative to the run's folder
    fingerprint: str
    spec: dict[str, Any]  # the whole composed config
    workload: Workload
    scale: Scale
    phases: Phases
    ranks: list[RankRecord]
    sync: Sync
    monitor: Monitor
    quality: Quality
    machine: Machine
    flags: list[str]
    scheduler: SchedulerRecord | None = None
    other_machines: list[Machine] | None = None  # of nodes 1 and on, in their order; null: one node, or not told
    trace: str | None = None  # of all ranks, in the run's folder; a rank that names its own is not in it


LOWER_IS_BETTER = ("mse", "cross_entropy")


def reached(metric: str, value: float, target: float) -> bool:
    """Whether `value` is as good as `target`: errors are to fall, an accuracy is to rise."""
    return value <= target if metric.startswith(LOWER_IS_BETTER) else value >= target


def first_reached(curve: list[CurvePoint], metric: str, target: float) -> CurvePoint | None:
    """The first point whose validation metric is as good as `target`; None: it was never reached."""
    for point in curve:
        if metric in point.metrics and reached(metric, point.metrics[metric], target):
            return point
    return None


def merged_curve(curves: list[list[CurvePoint]]) -> list[CurvePoint]:
    """Of all ranks: seconds are the slowest's, the loss is the mean over all samples; the rest is alike on all."""
    return [_merged(points) for points in zip(*curves, strict=False)]


def _merged(points: tuple[CurvePoint, ...]) -> CurvePoint:
    samples = sum(point.loss_samples for point in points)
    losses = [(point.loss, point.loss_samples) for point in points if point.loss is not None]
    return dataclasses.replace(
        points[0],
        train_s=max(point.train_s for point in points),
        evaluate_s=max(point.evaluate_s for point in points),
        loss=sum(loss * n for loss, n in losses) / samples if samples else None,
        loss_samples=samples,
    )


def write_result(result: Result, folder: Path) -> Path:
    """Write result.json whole or not at all; OSError when the folder is full or not writable."""
    path = folder / RESULT_FILE
    write_json(path, result)
    return path


def read_result(path: Path) -> Result:
    """Read and validate one result.json.

    The types are checked against the dataclasses, from which result.schema.json is generated; unknown fields
    are passed over, since later nullable ones keep the version. Raises InputError, in one line, for a file
    that is missing, cut short, of another schema version or no valid record.
    """
    if _is_special(path):  # to open a pipe is to wait for a writer
        raise InputError(f"{path} is no plain file; remove it")
    try:
        result = read_record(path, Result, ignore_unknown=True)
        datetime.fromisoformat(result.started_at)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        _refuse_damaged(path)
        raise InputError(f"{path} is no valid record: {error}; run it again, or remove its folder") from error
    if result.schema_version != SCHEMA_VERSION:
        raise InputError(_other_version(path, result.schema_version))
    for status in (result.status, *(rank.status for rank in result.ranks)):
        if status not in STATUSES:
            raise InputError(f"{path} is no valid record: status '{status}' is none of {', '.join(STATUSES)}")
    return result


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _refuse_damaged(path: Path) -> None:
    """Raise InputError for a file that is no JSON, or of another version: what its fields hold says nothing then."""
    try:
        tree = read_json(path)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no whole JSON file ({error}); run it again, or remove its folder") from error
    version = tree.get("schema_version") if isinstance(tree, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(_other_version(path, version))


def _other_version(path: Path, version: Any) -> str:
    newer = isinstance(version, int) and version > SCHEMA_VERSION
    way_out = "update scalebench to read it" if newer else "run it again with this version of scalebench"
    return f"{path} has schema version {version}, this scalebench reads {SCHEMA_VERSION}; {way_out}"


def result_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of result.json; `python -m scalebench.core.result` rewrites its file."""
    parts: dict[str, Any] = msgspec.json.schema(Result)["$defs"]
    for part in parts.values():
        part.pop("description", None)  # the docstrings, which are for readers of the code
    root = parts.pop(Result.__name__) | {"title": "scalebench result"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": parts}


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json.dumps(result_schema(), indent=1) + "\n", encoding="utf-8")
    print(SCHEMA_PATH)
