"""The record: what one run leaves, as dataclasses; written, validated and read as result.json. Layer 0.

Raw figures per rank are stored; speedup, efficiency and intervals are computed on load (frame.py).
Units stand in the names; null means not measured. A new nullable field keeps the version.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from scalebench.curve_records import CurvePoint
from scalebench.machine import Machine
from scalebench.monitor_records import Monitor as Monitor  # it is part of the record
from scalebench.probe_records import Probes
from scalebench.records import from_dict, read_json, write_json
from scalebench.spec import InputError
from scalebench.stage_records import StageRecord

SCHEMA_VERSION = 1
RESULT_FILE = "result.json"
SCHEMA_PATH = Path(__file__).with_name("result.schema.json")
STATUSES = ("ok", "failed", "oom", "timeout", "unsupported", "cancelled")


@dataclass
class Timeline:
    """What the framework itself wrote of some exchanges after the figures were taken, for its writer costs time.

    Seconds of an update in which at least one tensor was in the phase; phases overlap.
    """

    file: str | None = None  # in the run's folder
    reason: str | None = None  # why there is none
    updates: int | None = None
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
    status: str = "ok"
    reason: str | None = None
    failed_at_s: float | None = None  # seconds since the epoch
    marks_s: dict[str, float] = field(default_factory=dict)  # start of each phase, seconds since the epoch
    block_steps: int | None = None
    block_s: list[float] = field(default_factory=list)  # measured blocks, steady state
    block_samples: list[int] = field(default_factory=list)  # of this process
    block_losses: list[float | None] = field(default_factory=list)  # mean per sample; null: no loss here
    warmup_found_steps: int | None = None  # updates until steady state was found; null: not within the bounds
    warmup_block_steps: int | None = None
    warmup_block_s: list[float] = field(default_factory=list)
    warmup_losses: list[float | None] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)  # of a training that goes to a stop; losses of this process
    stopped_by: str | None = None  # epochs | steps | seconds | target
    first_update_s: float | None = None  # of such a training: what compiling takes is in it
    message_bytes: list[int] = field(default_factory=list)
    timeline: Timeline | None = None
    probes: Probes | None = None
    backend_used: str | None = None
    settings_used: dict[str, str] = field(default_factory=dict)  # precision, data_format, compiler
    params: int | None = None
    train_samples: int | None = None  # of the whole data set, all replicas
    updates_per_epoch: int | None = None
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
    updates_per_epoch: int | None
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
    first_update_s: float | None = None
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

    schema_version: int
    run_id: str
    started_at: str  # ISO 8601, UTC
    status: str
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


def write_result(result: Result, folder: Path) -> Path:
    """Write result.json whole or not at all; OSError when the folder is full or not writable."""
    path = folder / RESULT_FILE
    write_json(path, dataclasses.asdict(result))
    return path


def read_result(path: Path) -> Result:
    """Read and validate one result.json.

    The types are checked against the dataclasses, from which result.schema.json is generated; unknown fields
    are passed over, since later nullable ones keep the version. Raises InputError, in one line, for a file
    that is missing, cut short, of another schema version or no valid record.
    """
    try:
        plain = not path.exists() or path.is_file() or path.is_dir()
        tree = read_json(path) if plain else None  # to open a pipe is to wait for a writer
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no whole JSON file ({error}); run it again, or remove its folder") from error
    if not plain:
        raise InputError(f"{path} is no plain file; remove it")
    version = tree.get("schema_version") if isinstance(tree, dict) else None
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        way_out = "update scalebench to read it" if newer else "run it again with this version of scalebench"
        raise InputError(f"{path} has schema version {version}, this scalebench reads {SCHEMA_VERSION}; {way_out}")
    try:
        result = from_dict(Result, tree, ignore_unknown=True)
        datetime.fromisoformat(result.started_at)
    except ValueError as error:
        raise InputError(f"{path} is no valid record: {error}; run it again, or remove its folder") from error
    for status in (result.status, *(rank.status for rank in result.ranks)):
        if status not in STATUSES:
            raise InputError(f"{path} is no valid record: status '{status}' is none of {', '.join(STATUSES)}")
    return result
