"""The record of one run as dataclasses, written, validated and read as result.json.

Raw figures of each rank are stored; speedup, efficiency and intervals are computed on load. Units are part of the
names; null means not measured. A new nullable field keeps the version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from scalebench.core.errors import InputError
from scalebench.core.json_files import format_json, parse_json, parse_record, write_text
from scalebench.core.machine.machine import Machine
from scalebench.core.machine.variables import mask_credentials
from scalebench.core.probe_record import ProbeRecord
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.untrusted import FileRefused, read_plain_file

SCHEMA_VERSION = 2
FINAL_LOSS_STEPS = 10  # a fixed number, so that trainings to the same stop report the loss of the same steps
STATUSES = ("ok", "failed", "oom", "timeout", "unsupported", "cancelled")
Status = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(STATUSES)})$")]
Version = Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


class DeviceMonitorRecord(msgspec.Struct):
    """Measurements of one GPU of the run; means are over time."""

    index: int  # NVML's
    gpu_util_mean: float | None = None  # share of the time in which something ran on it
    memory_util_mean: float | None = None  # share of the time in which its memory was read or written
    memory_used_bytes_max: int | None = None
    gpu_power_w_mean: float | None = None
    energy_j: float | None = None
    energy_from: str | None = None  # counter: of the GPU | power: integral of sampled power
    sm_clock_mhz_min: float | None = None
    sm_clock_mhz_mean: float | None = None
    mem_clock_mhz_min: float | None = None
    mem_clock_mhz_mean: float | None = None
    temperature_c_max: float | None = None
    throttle_reasons: list[str] | None = None  # as nvidia-smi names them; empty: none
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None
    lost_at_s: float | None = None  # seconds since the epoch; null: not lost
    node: int | None = None  # null: the only machine of the run


@dataclass
class MonitorRecord:
    """Measurements of all devices, processes and machines of the run together."""

    file: str | None = None  # the complete series, in the run's folder; with several nodes that of node 0
    reason: str | None = None  # why there is no series, or what it lacks
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
    cpu_util_mean: float | None = None  # share of the cores that the run may use, used by any program
    cpu_util_ours_mean: float | None = None  # likewise, used by the ranks and their children
    cpu_cores_others_mean: float | None = None  # number of cores used by programs outside the run
    other_programs: list[str] | None = None  # names of the largest of them, over the whole run
    rss_bytes_max: int | None = None  # sum over the ranks
    rss_anon_bytes_max: int | None = None  # without mapped files, which the ranks share
    memory_available_bytes_min: int | None = None  # of any node
    swap_in_bytes: int | None = None  # of the machines, as are the next fields
    swap_out_bytes: int | None = None
    net_sent_bytes_per_s: float | None = None  # all interfaces but the loopback
    net_received_bytes_per_s: float | None = None
    loopback_bytes_per_s: float | None = None
    infiniband_sent_bytes_per_s: float | None = None
    infiniband_received_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    devices: list[DeviceMonitorRecord] = field(default_factory=list)


class CurvePoint(msgspec.Struct):
    """The state of a training at one evaluation, between two steps."""

    step: int  # steps so far
    epochs: float  # passes over the training samples so far
    samples: int  # so far, of all replicas
    train_s: float  # seconds of all steps but the first, which compiles; without the time between steps
    learning_rate: float  # of the last step
    loss: float | None  # training loss, mean per sample over the steps since the previous point
    loss_samples: int  # number of samples in that mean
    metrics: dict[str, float] = {}  # on validation samples; empty: there are none
    train_metrics: dict[str, float] = {}  # likewise on as many training samples
    evaluate_s: float = 0.0  # duration of this evaluation
    at_s: float = 0.0  # its start, seconds since the epoch


class StageRecord(msgspec.Struct):
    """One stage of a pipeline-parallel model. Bytes and seconds are per step."""

    index: int  # counted from the input
    stages: int  # number of stages of the model
    replica: int  # which copy of the pipeline the stage belongs to
    first: str  # name of its first operation
    last: str
    parameter_bytes: int
    micro_batches: int  # that each batch is split into
    sent_bytes: int | None = None  # activations sent to the next stage; null: it is the last one
    work_s: float | None = None  # forward and backward of all micro-batches, without waiting; null: not measured


class TimelineRecord(msgspec.Struct):
    """The framework's own timeline of some gradient synchronizations, taken after measuring since writing costs time.

    Seconds per step during which at least one tensor was in the phase; phases overlap.
    """

    file: str | None = None  # in the run's folder
    reason: str | None = None  # why there is none
    steps: int | None = None
    negotiate_s: float | None = None  # from the first rank's announcement of a tensor to the last's
    queue_s: float | None = None
    memcpy_s: float | None = None  # in and out of the buffer of fused tensors
    allreduce_s: float | None = None


class ScriptRecord(msgspec.Struct):
    """Counts and classes that the hooks found in a user's program, in one process."""

    steps: int = 0  # in all
    step_kind: str = "optimizer"  # what ended them: optimizer, batch, or call of scalebench.step
    batches: int = 0  # drawn for training, in all
    draws: int = 0  # from loaders, whose waits are seen: none within Keras' fit
    tokens: int | None = None  # in these batches, with padding; null: they are not of tokens
    leader: str | None = None  # class of the optimizer whose steps are the steps
    optimizers: int = 0
    wrappers: list[str] = []  # that synchronize gradients
    hooks_s: float | None = None  # seconds that scalebench's own hooks took in a step
    libraries: list[str] = []  # for training, that it has imported


@dataclass
class RankRecord:
    """The measurements of one process, as rank<k>.json holds them."""

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
    block_started_at_s: list[float] = field(default_factory=list)  # seconds since the epoch
    block_rounds: list[int] = field(default_factory=list)  # round of the cohort; empty: measured by itself
    # A user's program fills these two: words for what a block includes beside training (saving, evaluation, epoch),
    # and the seconds of the block in which the program waited for samples.
    block_pauses: list[str] = field(default_factory=list)
    block_data_s: list[float] = field(default_factory=list)
    script: ScriptRecord | None = None
    steady_after_steps: int | None = None  # null: no steady state within the bounds
    warmup_block_steps: int | None = None
    warmup_block_s: list[float] = field(default_factory=list)
    warmup_losses: list[float | None] = field(default_factory=list)
    last_loss_sum: float = 0.0  # over the samples of the last FINAL_LOSS_STEPS steps in this process
    last_loss_samples: int = 0  # 0: no loss here
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)  # of a training to a stop condition; losses of this process
    stopped_by: str | None = None  # epochs | steps | seconds | target
    first_step_s: float | None = None  # of such a training: includes compiling
    message_bytes: list[int] = field(default_factory=list)
    timeline: TimelineRecord | None = None
    probes: ProbeRecord | None = None
    probe_failures: dict[str, str] = field(default_factory=dict)  # quantity -> error that left it without a value
    backend_used: str | None = None
    settings_used: dict[str, str] = field(default_factory=dict)  # precision, data_format, compiler
    model_remarks: dict[str, str] = field(default_factory=dict)  # flag -> sentence on a user's model
    params: int | None = None
    flops_per_sample: float | None = None  # of training a user's model; null: unknown, or another model
    learning_rate: float | None = None  # the peak of the optimizer's; null: its parameters have several
    train_samples: int | None = None  # of the data set, all replicas
    steps_per_epoch: int | None = None
    threads: int | None = None  # within an operation, as they were at the end of the measurement
    left_out: list[str] | None = None  # hooks of a user's module that the steps did not run
    affinity: list[int] = field(default_factory=list)
    interface: str | None = None  # to the other ranks, of Gloo and TensorFlow; NCCL and MPI choose their own
    gpus: list[str | None] = field(default_factory=list)  # name and UUID by device; null: unknown, or a part of one
    peak_memory_bytes: list[int | None] = field(default_factory=list)
    reserved_memory_bytes: list[int | None] = field(default_factory=list)  # peak of what the allocator took, by device
    allocator_retries: int | None = None  # memory was full: it gave back its cache and tried again
    state_bytes: list[int | None] = field(default_factory=list)  # weights, gradients, optimizer's state; by device
    stages: list[StageRecord] = field(default_factory=list)  # on its devices; empty: the complete model
    rss_peak_bytes: int | None = None
    rss_anon_peak_bytes: int | None = None  # without mapped files; the largest seen between blocks
    cpu_s: float | None = None  # processor time of this process
    clock_offset_s: float | None = None  # this host's clock minus rank 0's; null: same host, or not measured
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class Workload:
    """The model, data set and numeric settings of a run."""

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
    compile: str | bool = "none"  # none | default | graphs; false and true in older records
    precision_used: str | None = None
    data_format_used: str | None = None
    compiler_used: str | None = None  # inductor | xla | graphs | none
    read_samples_per_s: float | None = None  # of a user's Dataset, in one process, before the run read its copy
    tokens_per_sample: float | None = None  # padding included; null: samples are not sequences of tokens


@dataclass
class Scale:
    """The strategy, devices and batch sizes of a run."""

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
    batch_per_device: int | None  # null: of a user's program whose samples were not counted
    global_batch: int | None
    independent: bool  # replicas that never synchronize
    repeat: int
    seed: int
    baseline_bare: str | None

    @property
    def samples_per_step(self) -> int:
        """The global batch of a run with a throughput, which has one."""
        if self.global_batch is None:
            raise ValueError("the samples of a step were not counted")
        return self.global_batch


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


class Sync(msgspec.Struct):
    """The messages of gradient synchronization; its duration is in the probes of the ranks."""

    message_bytes: list[int] = []
    timeline: TimelineRecord | None = None  # measure.timeline=true
    transports: dict[str, str] | None = None  # NCCL's by pair of ranks, from its log (NCCL_DEBUG=INFO)


class BatchTrial(msgspec.Struct):
    """One try in the search for the largest batch."""

    batch_per_device: int
    status: str  # ok: it fits | oom
    reason: str | None
    peak_memory_bytes: int | None  # of the device with the most, as its allocator reserved it; null: unknown
    rss_anon_bytes_max: int | None  # of the rank with the most
    throughput_samples_per_s: float | None


class MaxBatch(msgspec.Struct):
    """The search for the largest batch that fits."""

    batch_per_device: int | None  # null: not even one sample fits
    limit_bytes: int | None  # limit of each process; null: the device's memory
    bounded_by: str  # memory | data: the data set allows no larger batch
    trials: list[BatchTrial]  # in chronological order


@dataclass
class Quality:
    """The losses and metrics of a run, of its training curve and of its batch search."""

    final_loss: float | None = None  # mean per sample over the last FINAL_LOSS_STEPS steps, all ranks
    metric_name: str | None = None
    metric: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    time_to_target_s: float | None = None  # of training, at the first point of the curve that reaches the target
    curve: list[CurvePoint] = field(default_factory=list)  # of all ranks: seconds of the slowest, mean losses
    stopped_by: str | None = None  # epochs | steps | seconds | target; null: throughput was measured
    first_step_s: float | None = None
    learning_rate: float | None = None  # the peak: by the rule for this batch, or of the user's optimizer
    max_batch: MaxBatch | None = None  # measure.search=max_batch


class SchedulerRecord(msgspec.Struct):
    """The job of a run that a scheduler gave its nodes."""

    name: str  # slurm
    job_id: str
    partition: str | None = None
    nodes: list[str] = []  # host names in the order of the run's nodes
    queued_s: float | None = None  # from submission to the start of the job
    state: str | None = None  # the scheduler's final state
    reason: str | None = None


@dataclass
class Result:
    """The record of one run, also of a failed one."""

    schema_version: Version
    run_id: str
    started_at: str  # ISO 8601, UTC
    status: Status
    reason: str | None
    log: str | None  # of the failed rank, relative to the run's folder
    fingerprint: str
    spec: dict[str, Any]  # the complete composed config
    workload: Workload
    scale: Scale
    phases: Phases
    ranks: list[RankRecord]
    sync: Sync
    monitor: MonitorRecord
    quality: Quality
    machine: Machine
    flags: list[str]
    scheduler: SchedulerRecord | None = None
    other_machines: list[Machine] | None = None  # of node 1 and the next ones; null: one node, or not reported
    cohort: str | None = None  # equal for runs that took turns; null: measured by itself
    disturbed_rounds: list[int] = field(default_factory=list)  # in which other programs took cores that this run needed
    trace: str | None = None  # of all ranks, in the run's folder, but for ranks that name a trace of their own


LOWER_IS_BETTER = ("mse", "cross_entropy")


def reaches_target(metric: str, value: float, target: float) -> bool:
    """Return whether a metric is at least as good as the target: lower for errors, higher for an accuracy."""
    return value <= target if metric.startswith(LOWER_IS_BETTER) else value >= target


def first_point_at_target(curve: list[CurvePoint], metric: str, target: float) -> CurvePoint | None:
    """Return the first point of a curve whose validation metric reaches the target; None where none does."""
    values = ((point, point.metrics.get(metric)) for point in curve)
    return next((point for point, value in values if value is not None and reaches_target(metric, value, target)), None)


def start_time(result: Result) -> datetime:
    """Return when a run started; a time without a zone, as in foreign records, is read as UTC."""
    started = datetime.fromisoformat(result.started_at)
    return started if started.tzinfo is not None else started.replace(tzinfo=UTC)


def write_result(result: Result, folder: Path) -> Path:
    """Write result.json completely or not at all, without credentials in addresses; OSError where that fails."""
    path = folder / RESULT_FILE
    text = mask_credentials(format_json(result, escape_all=False))
    # Bytes of a file name that are not Unicode are lone surrogates in Python, which no reader takes.
    write_text(path, text.encode("utf-8", "replace").decode("utf-8"))
    return path


def read_result(path: Path) -> Result:
    """Read and validate one result.json.

    Unknown fields are ignored, since later nullable ones keep the version. Raises InputError, in one line, for a file
    that is missing, cut short, of another schema version or no valid record.
    """
    try:
        content = read_plain_file(path, follow_link=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except FileRefused as error:
        raise InputError(f"{path} {error}") from error
    try:
        result = parse_record(content, Result)
        datetime.fromisoformat(result.started_at)
    except ValueError as error:
        _refuse_damaged(path, content)
        raise InputError(f"{path} is not a valid record: {error}; run it again, or remove its folder") from error
    return result


def _refuse_damaged(path: Path, content: bytes) -> None:
    """Raise InputError for a file that is not JSON, or of another version, where the faults of fields say nothing."""
    try:
        tree = parse_json(content)
    except ValueError as error:
        way_out = "run it again, or remove its folder" if path.name == RESULT_FILE else "give a result.json or a folder"
        raise InputError(f"{path} is not a complete JSON file ({error}); {way_out}") from error
    version = tree.get("schema_version") if isinstance(tree, dict) else None
    if version != SCHEMA_VERSION or type(version) is not int:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        way_out = "update scalebench to read it" if newer else "run it again with this version of scalebench"
        raise InputError(f"{path} has schema version {version}, this scalebench reads {SCHEMA_VERSION}; {way_out}")


def result_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of result.json, which `python -m scalebench.core.result` prints."""
    parts: dict[str, Any] = msgspec.json.schema(Result)["$defs"]
    for part in parts.values():
        part.pop("description", None)  # the docstrings are for readers of the code
    root = parts.pop(Result.__name__) | {"title": "scalebench result"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": parts}


if __name__ == "__main__":
    print(json.dumps(result_schema(), indent=1))
