"""The parts of a run's record, put together: the only place that creates or changes a Result.

The exits of the processes and their rank files become one status with one reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import signal
import socket
import statistics
import uuid
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from scalebench.core import result as results
from scalebench.core.json_files import read_tail
from scalebench.core.run_folder import MERGED_TRACE_FILE, rank_log_name, rank_record_path, read_rank_file
from scalebench.core.spec import RunSpec
from scalebench.core.untrusted import clean_text
from scalebench.measure import clock_sync
from scalebench.measure.monitor.summary import MonitorPart
from scalebench.measure.nodes import MachinesPart, has_node_reports
from scalebench.runner import memory_limit
from scalebench.runner.launchers.supervise import GroupExit
from scalebench.workloads import datasets, networks, user_code

# Signals that a fault of the process itself raises, so that the last error in its log is the cause.
FAULTS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
# Of a line of a log that has a cause: of C++ (`what():  out of range`), of Python and of libraries' checks.
CAUSE = re.compile(r"what\(\):|\b\w*(?:Error|Exception)\b|\berror:|\bfatal\b|assertion|check failed", re.IGNORECASE)
LOG_TAIL_BYTES, MAX_CAUSE_CHARACTERS = 50_000, 300
FP32_BYTES = 4
MAX_CLOCK_DIFFERENCE_S = 1.0  # between the clock of a rank, which may be slewed, and that of the launcher
PHASE_MARKS = ("launch", "setup", "warmup", "measure", "evaluate", "probes", "close", "end")


@dataclass
class RunOutcome:
    """The end of a run: its status and its reason."""

    status: str
    reason: str | None = None
    rank: int | None = None  # the one that failed first, whose log has details
    launched_at_s: float | None = None
    wall_s: float | None = None
    log: str | None = None  # a file in the run's folder with details, where no rank's log has them
    probe_failure: str | None = None  # of a run that is ok: why `rank` did not come to the end of its probes


@dataclass(frozen=True)
class RunId:
    """The identity of one start of a run, among others of the same spec."""

    id: str
    started_at: str  # ISO 8601, UTC

    @classmethod
    def new(cls, started_at_s: float | None = None) -> RunId:
        """Make the id of a run that starts now, or started at that time (seconds since the epoch)."""
        started = datetime.now(UTC) if started_at_s is None else datetime.fromtimestamp(started_at_s, UTC)
        return cls(uuid.uuid4().hex[:12], started.isoformat(timespec="milliseconds"))


@dataclass
class ResultParts:
    """All parts of the record of a run that follow neither from its spec nor from its outcome."""

    ranks: list[results.RankRecord | None] = field(default_factory=list)
    machines: MachinesPart = field(default_factory=MachinesPart)
    monitor: MonitorPart = field(default_factory=MonitorPart)
    scheduler: results.SchedulerRecord | None = None
    transports: dict[str, str] | None = None  # of NCCL, by pair of ranks
    merged_traces: Sequence[int] = ()  # ranks whose traces are in trace.json.gz
    max_batch: results.MaxBatch | None = None
    disturbed_rounds: list[int] = field(default_factory=list)
    log: str | None = None  # a file with details, relative to the run's folder


def assemble_result(spec: RunSpec, run: RunId, outcome: RunOutcome, parts: ResultParts) -> results.Result:
    """Put the record of a run together."""
    ranks = [rank for rank in parts.ranks if rank is not None]
    first = ranks[0] if ranks else None
    for rank in ranks:
        if rank.rank in parts.merged_traces and rank.probes is not None:
            rank.probes.trace = None
    _mark_probe_failure(ranks, outcome)
    # A training that was over within warm-up, before the measured steps, has no throughput.
    ended_early = outcome.status == "ok" and first is not None and first.curve and not first.block_s
    flags = [*spec.flags, *["over_in_warmup"] * bool(ended_early), *_rank_flags(spec, ranks), *parts.machines.flags]
    workload = _workload(spec, ranks)
    flags += ["precision_differs"] if differs_in_precision(workload.precision, workload.precision_used) else []
    flags += parts.monitor.flags
    # Where other programs took the cores in all rounds, which can be shorter than the second that the monitor sees.
    rounds = set(first.block_rounds) if first is not None else set()
    is_busy = rounds and rounds <= set(parts.disturbed_rounds) and "busy_machine" not in flags
    flags += ["busy_machine"] if is_busy else []
    sync = results.Sync(transports=parts.transports)
    if first is not None:
        sync.message_bytes, sync.timeline = first.message_bytes, first.timeline
    return results.Result(
        schema_version=results.SCHEMA_VERSION,
        run_id=run.id,
        started_at=run.started_at,
        status=outcome.status,
        reason=None if outcome.reason is None else clean_text(outcome.reason),
        log=parts.log,
        fingerprint=spec.fingerprint,
        spec=msgspec.to_builtins(spec.config),
        workload=workload,
        scale=_scale(spec, ranks),
        phases=_phases(spec, first, outcome),
        ranks=ranks,
        sync=sync,
        monitor=parts.monitor.monitor,
        quality=_quality(spec, ranks, parts.max_batch),
        machine=parts.machines.machine,
        flags=flags,
        scheduler=parts.scheduler,
        other_machines=parts.machines.others,
        cohort=spec.cohort,
        disturbed_rounds=parts.disturbed_rounds,
        trace=MERGED_TRACE_FILE if parts.merged_traces else None,
    )


def with_job_outcome(
    result: results.Result, scheduler: results.SchedulerRecord | None, outcome: RunOutcome | None
) -> results.Result:
    """Return a job's record with the scheduler's facts, and with `outcome` where that explains its end better."""
    result = dataclasses.replace(result, scheduler=scheduler)
    if outcome is None:
        return result
    flags = [*result.flags, *(flag for flag in _mark_probe_failure(result.ranks, outcome) if flag not in result.flags)]
    return dataclasses.replace(result, status=outcome.status, reason=outcome.reason, flags=flags)


def read_ranks(folder: Path, processes: int, run_id: str | None = None) -> list[results.RankRecord | None]:
    """Return each rank's record in this run (None: in any run there); None where it left none, or an incomplete one."""
    return [read_rank_file(rank_record_path(folder, rank), results.RankRecord, run_id) for rank in range(processes)]


def classify_exit(
    ended: GroupExit,
    ranks: list[results.RankRecord | None],
    oom_kill: bool,
    folder: Path | None = None,
    independent: bool = False,
) -> RunOutcome:
    """Return the status of the run, and the reason of the rank that failed first, which is why the others failed.

    `folder` has the logs of the ranks, of which the last error is the reason of a rank that left none. Ranks of a run
    that is not `independent` synchronize in each step, so that all have trained equally many.
    """
    outside = ended.outcome or (None if ended.broken is None else ("failed", ended.broken))
    # Lost connections that its ranks report follow from what came from outside.
    outcome = _classify_ranks(ended, ranks, oom_kill, folder) if outside is None else RunOutcome(*outside)
    outcome = keep_figures(outcome, ranks, ended.services)
    if outcome.status == "ok" and not independent:
        outcome = _find_unequal_steps([rank for rank in ranks if rank is not None]) or outcome
    return dataclasses.replace(outcome, launched_at_s=ended.started_at_s, wall_s=ended.wall_s)


def _find_unequal_steps(ranks: Sequence[results.RankRecord]) -> RunOutcome | None:
    """Return the failure of ranks that have not trained the same number of steps; None where all have."""

    def count_steps(rank: results.RankRecord) -> int:
        if rank.curve:  # whose points cut blocks short
            return rank.curve[-1].step
        series = ((rank.warmup_block_s, rank.warmup_block_steps), (rank.block_s, rank.block_steps))
        return sum(len(seconds) * (steps or 0) for seconds, steps in series)

    (first, steps), *others = [(rank.rank, count_steps(rank)) for rank in ranks]
    for other, count in others:
        if count != steps:
            counts = f"rank {first} trained {steps} steps and rank {other} {count}"
            return RunOutcome("failed", f"{counts}: they did not train together", other)
    return None


def _classify_ranks(
    ended: GroupExit, ranks: list[results.RankRecord | None], oom_kill: bool, folder: Path | None
) -> RunOutcome:
    """Return why the group ended, as if no figures were on disk; ok where nothing went wrong, or only in probes of
    which a record says so."""
    measuring = [rank for rank in range(len(ranks)) if rank not in ended.services]
    missing = [rank for rank in measuring if ranks[rank] is None]
    bad = [rank for rank, code in enumerate(ended.exit_codes) if code != 0 and rank in measuring]
    present = [record for record in ranks if record is not None]
    failed = [record for record in present if record.status != "ok"]
    reported = [record.rank for record in present if record.probe_failures]
    is_measured = not missing and not any(record.rank in measuring for record in failed)
    if is_measured and ended.timeout is None and (reported or not bad):
        return RunOutcome("ok", rank=reported[0] if reported else None)
    if ended.timeout_at_s is not None:  # a rank that failed and then hung in closing a broken group failed before it
        failed = [
            r for r in failed if clock_sync.to_this_host_clock_s(r.failed_at_s or 0.0, r, present) < ended.timeout_at_s
        ]
    if ended.timeout is not None and not failed:
        stuck = [*ended.stopped, *missing, *bad, 0][0]
        why = f"; rank {stuck} is stopped" if ended.stopped else ""
        return RunOutcome("timeout", f"{ended.timeout}{why}", stuck)
    # A rank that died without a record is the cause; those that report a lost connection follow it.
    silent = [rank for rank in ended.died_first if ranks[rank] is None]
    if failed and not silent:
        return outcome_of_first_failure(failed, len(ranks), ended.died_first)
    return _outcome_without_reason([*silent, *missing, *ended.died_first, *bad][0], ended, oom_kill, folder)


def keep_figures(
    outcome: RunOutcome, ranks: Sequence[results.RankRecord | None], services: Container[int]
) -> RunOutcome:
    """Return the outcome of a run that ended so: one whose figures were on disk is ok and lacks probes, unless somebody
    cancelled it, which is `cancelled` as after Ctrl-C."""
    measuring = [record for rank, record in enumerate(ranks) if rank not in services]
    present = [record.rank for record in measuring if record is not None and record.status == "ok"]
    if outcome.status in ("ok", "cancelled") or not measuring or len(present) < len(measuring):
        return outcome
    first = outcome.rank if outcome.rank in present else present[0]
    return RunOutcome("ok", rank=first, probe_failure=outcome.reason or outcome.status)


def _mark_probe_failure(ranks: Sequence[results.RankRecord], outcome: RunOutcome) -> list[str]:
    """Write into the record of its rank why the probes did not come to their end; return the flags for that."""
    for rank in ranks:
        if rank.rank == outcome.rank and outcome.probe_failure is not None:
            rank.probe_failures["probes"] = outcome.probe_failure
    return ["probe_failed"] if outcome.probe_failure is not None else []


def outcome_of_first_failure(
    failed: Sequence[results.RankRecord], processes: int, died_first: Sequence[int] = ()
) -> RunOutcome:
    """Return the outcome of the rank that failed first, by their records; where their clocks are not comparable, of one
    of those that the launcher saw end first."""
    seen_first = [r for r in failed if r.rank in died_first]
    candidates = failed if clock_sync.are_comparable(failed) else seen_first or failed
    first = min(candidates, key=lambda r: clock_sync.to_rank_0_clock_s(r.failed_at_s or 0.0, r))
    where = f"rank {first.rank}: " if processes > 1 and first.status != "unsupported" else ""
    return RunOutcome(first.status, f"{where}{first.reason}", first.rank)


def _outcome_without_reason(rank: int, ended: GroupExit, oom_kill: bool, folder: Path | None) -> RunOutcome:
    """Return the outcome of a rank that left no reason."""
    code = ended.exit_codes[rank]
    name = f"rank {rank} ({ended.services[rank]})" if rank in ended.services else f"rank {rank}"
    if code is not None and code < 0:
        signal_name = signal.Signals(-code).name
        if oom_kill and signal_name == "SIGKILL":
            return RunOutcome("oom", f"{name} was killed by the kernel, which ran out of memory", rank)
        cause = _find_cause(signal.Signals(-code), folder, rank)
        return RunOutcome("failed", f"{name} was killed by {signal_name}{cause}", rank)
    return RunOutcome("failed", f"{name} ended with exit status {code} and without a reason", rank)


def _find_cause(killed_by: signal.Signals, folder: Path | None, rank: int) -> str:
    """Return the last error in the log of a rank that a fault of its own killed, and the size of a small /dev/shm, in
    which memory that does not exist is a SIGBUS; empty where there is neither."""
    if folder is None or killed_by not in FAULTS:
        return ""
    lines = []
    with contextlib.suppress(OSError):
        lines = [
            line for line in read_tail(folder / rank_log_name(rank), LOG_TAIL_BYTES).splitlines() if CAUSE.search(line)
        ]
    small = memory_limit.small_shared_memory_reason() if killed_by == signal.SIGBUS else None
    last = " ".join(lines[-1].split())[:MAX_CAUSE_CHARACTERS] if lines else None
    return "".join(f"; {each}" for each in (last and f"the last error in its log: {last}", small) if each)


def _rank_flags(spec: RunSpec, ranks: Sequence[results.RankRecord]) -> list[str]:
    """Flag a run that lacks figures beside its throughput because a probe failed, one whose memory was so full that it
    was slower for it, one whose processes shared a GPU, and one of whose module something was left out or changed."""
    gpus = [(rank.hostname, gpu) for rank in ranks for gpu in rank.gpus if gpu is not None]
    flags = {
        "shared_gpu": len(set(gpus)) < len(gpus),
        "probe_failed": any(rank.probe_failures for rank in ranks),
        "memory_full": any(rank.allocator_retries for rank in ranks),
        "hooks_left_out": any(set(rank.left_out or []) - {"train_dataloader"} for rank in ranks),
        "loader_left_out": any("train_dataloader" in (rank.left_out or []) for rank in ranks),
        "threads_changed": any(rank.threads not in (None, spec.places[rank.rank].threads) for rank in ranks),
    }
    remarks = dict.fromkeys(flag for rank in ranks for flag in rank.model_remarks)
    return [*(name for name, is_set in flags.items() if is_set), *remarks]


def _workload(spec: RunSpec, ranks: Sequence[results.RankRecord]) -> results.Workload:
    config, first = spec.config, ranks[0] if ranks else None
    params = first.params if first else None
    settings = first.settings_used if first else {}
    return results.Workload(
        model=config.model.name,
        model_params=params,
        gradient_bytes=None if params is None else params * FP32_BYTES,
        flops_per_sample=count_training_flops(spec) or (first.flops_per_sample if first else None),
        dataset=datasets.label(config),
        train_samples=first.train_samples if first else None,
        steps_per_epoch=first.steps_per_epoch if first else None,
        feed=config.dataset.feed,
        prefetch=config.dataset.prefetch,
        input_shape=list(config.model.input_shape),
        precision=config.train.precision,
        data_format=config.train.data_format,
        compile=config.train.compile,
        precision_used=settings.get("precision"),
        data_format_used=settings.get("data_format"),
        compiler_used=settings.get("compiler"),
        read_samples_per_s=spec.read_samples_per_s,
        tokens_per_sample=_count_tokens_of_program(spec, ranks) or spec.tokens_per_sample,
    )


def _count_tokens_of_program(spec: RunSpec, ranks: Sequence[results.RankRecord]) -> float | None:
    """Return the mean tokens of a sample of a user's program, whose sequences may differ in length."""
    scripts = [rank.script for rank in ranks if rank.script is not None and rank.script.tokens and rank.script.steps]
    samples = spec.declared_samples or count_samples_per_step(ranks)
    if not samples or not scripts or len(scripts) < len(ranks):
        return None
    return sum((script.tokens or 0) / script.steps for script in scripts) / samples


def differs_in_precision(requested: str, used: str | None) -> bool:
    """Return whether the steps computed in another precision than requested; `default` requests none. float32 excludes
    all others, while beside a lower one some operations of a step stay in float32."""
    if used is None or requested == "default":
        return False
    return used != requested if requested == "float32" else requested not in used.split("+")


def count_training_flops(spec: RunSpec) -> float | None:
    """Return the FLOPs of training on one sample as the model's description gives them; None for a user's own network,
    which the worker counts, and for one that fails."""
    model = spec.config.model
    if spec.plugin_error is not None or spec.config.script.path is not None or user_code.is_user_model(model):
        return None
    return networks.build_network(model).training_flops


def count_samples_per_step(ranks: Sequence[results.RankRecord]) -> int | None:
    """Return the samples of a step of all ranks, the median over blocks: an epoch's last step has fewer, and libraries
    that draw ahead count a batch one step too soon. None: nothing was counted, or blocks without a pause drew nothing,
    since the program trains on batches that it keeps, as by itertools.cycle."""
    steps = next((rank.block_steps for rank in ranks if rank.block_steps), None)
    blocks = [sum(samples) for samples in zip(*(rank.block_samples for rank in ranks), strict=False)]
    paused = {place for rank in ranks for place, pause in enumerate(rank.block_pauses) if pause}
    if any(not samples and place not in paused for place, samples in enumerate(blocks)):
        return None
    return round(statistics.median(blocks) / steps) or None if steps and blocks else None


def _scale(spec: RunSpec, ranks: Sequence[results.RankRecord]) -> results.Scale:
    first = ranks[0] if ranks else None
    strategy, framework = spec.config.strategy, spec.config.strategy.framework
    batch_per_device: int | None = spec.batch_per_device
    global_batch: int | None = spec.global_batch
    if spec.config.script.path is not None:
        framework = "torch" if first is not None and "torch" in first.versions else framework
        global_batch = spec.declared_samples or count_samples_per_step(ranks)
        batch_per_device = None if global_batch is None else round(global_batch / spec.gpus)
    return results.Scale(
        strategy=strategy.name,
        framework=framework,
        framework_version=first.versions.get(framework) if first else None,
        backend_requested=strategy.backend,
        backend_used=first.backend_used if first else None,
        hardware=spec.config.hardware.name,
        device=spec.device,
        gpus=spec.gpus,
        nodes=spec.nodes,
        processes=spec.processes,
        scaling=spec.config.scaling,
        batch_per_device=batch_per_device,
        global_batch=global_batch,
        independent=strategy.independent,
        repeat=spec.config.repeat,
        seed=spec.config.seed,
        baseline_bare=strategy.baseline,
    )


def _phases(spec: RunSpec, first: results.RankRecord | None, outcome: RunOutcome) -> results.Phases:
    phases = results.Phases(wall_s=outcome.wall_s)
    if first is None:
        return phases
    marks = [(name, first.marks_s[name]) for name in PHASE_MARKS if name in first.marks_s]
    one_clock = not has_node_reports(spec) or first.hostname == socket.gethostname()
    if outcome.launched_at_s is not None and marks and one_clock:
        phases.launch_s = _possible_s(marks[0][1] - outcome.launched_at_s, outcome)
    for (name, start_s), (_, end_s) in itertools.pairwise(marks):
        if name != "launch":
            within = sum(point.evaluate_s for point in first.curve if start_s <= point.at_s < end_s)
            setattr(phases, f"{name}_s", _possible_s(end_s - start_s - within, outcome))
    if first.curve:  # evaluated between the others
        phases.evaluate_s = sum(point.evaluate_s for point in first.curve)
    return phases


def _possible_s(seconds: float, outcome: RunOutcome) -> float | None:
    """Return the length of a phase; None where the machine's clock was set meanwhile, so that it cannot be."""
    too_long = outcome.wall_s is not None and seconds > outcome.wall_s + MAX_CLOCK_DIFFERENCE_S
    return None if seconds < -MAX_CLOCK_DIFFERENCE_S or too_long else max(0.0, seconds)


def _quality(spec: RunSpec, ranks: list[results.RankRecord], max_batch: results.MaxBatch | None) -> results.Quality:
    """Return the loss of the last steps over all ranks, and the validation metrics, which are equal on every rank."""
    planned_rate = spec.learning_rate if spec.global_batch else None  # 0: of a user's program, which has its own
    quality = results.Quality(max_batch=max_batch, learning_rate=ranks[0].learning_rate if ranks else planned_rate)
    if samples := sum(rank.last_loss_samples for rank in ranks):
        quality.final_loss = sum(rank.last_loss_sum for rank in ranks) / samples
    if ranks and ranks[0].curve:
        target, metric = spec.config.train.stop.target, spec.config.model.metric
        quality.curve = merge_curves([rank.curve for rank in ranks])
        quality.stopped_by = ranks[0].stopped_by
        quality.first_step_s = max((r.first_step_s for r in ranks if r.first_step_s is not None), default=None)
        point = None if target is None else results.first_point_at_target(quality.curve, metric, target)
        quality.time_to_target_s = None if point is None else point.train_s
    if ranks and ranks[0].metrics:
        quality.metrics = dict(ranks[0].metrics)
        quality.metric_name = spec.config.model.metric
        quality.metric = quality.metrics.get(spec.config.model.metric)
    return quality


def merge_curves(curves: list[list[results.CurvePoint]]) -> list[results.CurvePoint]:
    """Merge the curves of all ranks: seconds of the slowest, mean loss over all samples; the rest is equal on all."""
    merged = []
    for points in zip(*curves, strict=False):
        samples = sum(point.loss_samples for point in points)
        losses = [(point.loss, point.loss_samples) for point in points if point.loss is not None]
        most = {name: max(getattr(point, name) for point in points) for name in ("train_s", "evaluate_s")}
        loss = sum(loss * n for loss, n in losses) / samples if samples else None
        merged.append(msgspec.structs.replace(points[0], **most, loss=loss, loss_samples=samples))
    return merged
