"""Runs as rows of the frame: what the record of a run gives by itself, and how the run compares with others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.analysis import (
    collectives,
    identity,
    pipeline_stages,
    step_breakdown,
    throughput,
    training_columns,
    user_program,
)
from scalebench.analysis.baselines import Baselines
from scalebench.analysis.columns import COLUMN_KINDS, COUNT, FRAME_COLUMNS, TEXT
from scalebench.analysis.run_summary import RunSummary, join_words, settings_cells, start_time, uses_default_options
from scalebench.core.errors import InputError
from scalebench.core.machine import nccl_log
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import MonitorRecord, Result
from scalebench.core.run_folder import check_folder_name
from scalebench.core.stats.estimates import Estimate, scale_estimate

if TYPE_CHECKING:
    from scalebench.analysis.named_baseline import NamedBaseline

HOUR_S = 3600.0
MALFORMED_RECORD_ERRORS = (ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError, RecursionError)
MIN_RATE, MAX_RATE = 1e-100, 1e100  # samples/s: the quotient of any two is a number
MAX_COUNT = 2**63 - 1  # of a column of integers
MONITOR_COLUMNS = [f.name for f in dataclasses.fields(MonitorRecord) if f.name in FRAME_COLUMNS and f.name != "reason"]
LINK_COLUMNS = [name for name in FRAME_COLUMNS if name.endswith("_bytes_per_step")]
Cells = dict[str, Any]


@dataclass(frozen=True)
class ComparedRuns:
    """Runs that are loaded together, each with its row. Frames, pooled frames and reports are made of these rows."""

    runs: Sequence[RunSummary]
    rows: list[Cells]  # one for each run
    baselines: Baselines[RunSummary]
    named_baseline: NamedBaseline | None


def summarize_run(result: Result, folder: Path) -> RunSummary:
    """Return all that the rows of a frame need of this record.

    Raises InputError, in one line, if its fields hold no measurement: on reading only their types are checked.
    """
    check_folder_name(folder)
    try:
        return _summarize(result, folder)
    except MALFORMED_RECORD_ERRORS as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{folder}: its record holds what no run leaves ({text}); remove its folder") from error


def _summarize(result: Result, folder: Path) -> RunSummary:
    measurement = throughput.evaluate_blocks(result)
    cells = _own_cells(result, folder, measurement)
    _check(result, cells)
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    has_requested_probes = any(record.collectives or record.bandwidth for record in probes)
    if has_requested_probes:  # raises an error for what gives no figures, which would otherwise fail among other runs
        collectives.list_collectives(result)
        collectives.list_transfers(result)
    return RunSummary(
        result.run_id, result.started_at, result.status, result.reason, result.fingerprint, result.scale,
        start_time(result), identity.comparison_keys(result), identity.placement_of(result),
        uses_default_options(result), measurement.throughput, identity.sample_key(result), cells,
        has_requested_probes, result.cohort, measurement.round_rates,
    )  # fmt: skip


def _check(result: Result, cells: Cells) -> None:
    """Raise ValueError for a value that would otherwise fail in a frame, where its file is no longer known."""
    if result.scale.gpus < 1:
        raise ValueError(f"{result.scale.gpus} devices")
    rate = cells["throughput_samples_per_s"]
    if rate is not None and not MIN_RATE < rate < MAX_RATE:
        raise ValueError(f"{rate} samples/s")
    for name, value in cells.items():
        if value is None:
            continue
        kind, wanted = type(value), COLUMN_KINDS.get(name)
        if (kind is str) is not (wanted == TEXT) or (kind is int and abs(value) > MAX_COUNT):
            raise ValueError(f"{name} is {value}")
        if kind is float and wanted == COUNT and not value.is_integer():
            raise ValueError(f"{name} is {value}")
        if kind is str and not value.isascii():
            value.encode()  # a lone surrogate raises ValueError: no column can hold it


def compare_runs(runs: Sequence[RunSummary], named_baseline: NamedBaseline | None = None) -> ComparedRuns:
    """Find the baselines of all runs among themselves, and make their rows."""
    baselines = Baselines.among(runs)
    rows = [make_row(run, baselines, None if named_baseline is None else named_baseline.for_run(run)) for run in runs]
    return ComparedRuns(runs, rows, baselines, named_baseline)


def make_row(run: RunSummary, baselines: Baselines[RunSummary], named: RunSummary | None = None) -> Cells:
    """Return the cells of one run, against its self and bare baseline and the named one (columns `given`)."""
    cells, gpus = dict(run.cells), run.scale.gpus
    self_baseline, bare = baselines.find_self(run), baselines.find_bare(run)
    for kind, baseline in (("self", self_baseline), ("bare", bare), ("given", named)):
        devices = baseline.scale.gpus if baseline is not None else 1
        cells[f"baseline_{kind}_id"] = baseline.run_id if baseline is not None else None
        cells.update(speedup_cells(kind, gpus / devices, throughput.divide_throughputs(run, baseline), None))
        if kind != "given":
            cells[f"speedup_target_{kind}"] = training_columns.target_speedup(run, baseline)
    if scaling := user_program.scaling_flags(run, self_baseline):
        cells["flags"] = join_words([*filter(None, [cells["flags"]]), *scaling])
    overhead = throughput.overhead(self_baseline, bare)
    cells.update(interval_cells("overhead_share", "overhead_share", overhead, None))
    return cells


def _own_cells(result: Result, folder: Path, measurement: throughput.Measurement) -> Cells:
    """Return the columns that need no other run."""
    s, w, p, m, q = result.scale, result.workload, result.phases, result.monitor, result.quality
    (value, interval), step_s = measurement.throughput, measurement.step_s
    first, job = result.ranks[0] if result.ranks else None, result.scheduler
    model_options = result.spec.get("model", {}).get("options") or {}
    peaks = [peak for rank in result.ranks for peak in rank.peak_memory_bytes if peak is not None]
    resident = [rank.rss_peak_bytes for rank in result.ranks if rank.rss_peak_bytes is not None]
    epoch_s = w.train_samples / value if w.train_samples and value else training_columns.epoch_s_of_training(result)
    return {
        "run_id": result.run_id, "started_at": result.started_at, "status": result.status,
        "reason": result.reason, "path": str(folder), "fingerprint": result.fingerprint,
        "repeat": s.repeat, "seed": s.seed, "model": w.model, "dataset": w.dataset, "strategy": s.strategy,
        "framework": s.framework, "framework_version": s.framework_version, "backend_used": s.backend_used,
        "hardware": s.hardware, "gpus": s.gpus, "nodes": s.nodes, "processes": s.processes,
        "machine": str(classify_machine(result.machine)), "job_id": job.job_id if job else None,
        "queued_s": job.queued_s if job else None,
        "scaling": s.scaling, "batch_per_device": s.batch_per_device, "global_batch": s.global_batch,
        "precision": w.precision, "data_format": w.data_format, "feed": w.feed,
        "mfu": measurement.mfu,
        "model_params": w.model_params, "gradient_bytes": w.gradient_bytes,
        "model_options": join_words([f"{key}={value}" for key, value in model_options.items()]),
        "flops_per_sample": w.flops_per_sample,
        **interval_cells("throughput_samples_per_s", "throughput", value, interval),
        "interval_over": "blocks" if interval else None, "in_turns": bool(measurement.round_rates),
        "step_s": step_s, **measurement.step_spread, **step_breakdown.breakdown_cells(result, step_s),
        "epoch_s": epoch_s,
        "steps_per_epoch": w.steps_per_epoch, "launch_s": p.launch_s, "setup_s": p.setup_s,
        "warmup_s": p.warmup_s, "measured_s": p.measure_s, "wall_s": p.wall_s,
        "warmup_steps": _count_steps(first.warmup_block_s, first.warmup_block_steps) if first else None,
        "measured_steps": _count_steps(first.block_s, first.block_steps) if first else None,
        **{name: getattr(m, name) for name in MONITOR_COLUMNS}, **link_cells(m, step_s),
        "throttle_reasons": join_words(m.throttle_reasons),
        "other_programs": join_words([name.replace(" ", "_") for name in m.other_programs or []]),
        **_cost_cells(result, epoch_s),
        "rss_anon_bytes_max": _resident_bytes(result),
        "peak_memory_bytes": max(peaks, default=None),
        "rss_peak_bytes": max(resident, default=None),
        "final_loss": q.final_loss, "metric_name": q.metric_name, "metric": q.metric,
        "time_to_target_s": q.time_to_target_s,
        "precision_used": w.precision_used, "data_format_used": w.data_format_used,
        "compiler_used": w.compiler_used, "prefetch": w.prefetch, "read_samples_per_s": w.read_samples_per_s,
        **settings_cells(result), "transports": nccl_log.summarize_transports(result.sync.transports),
        **training_columns.training_cells(result),
        **pipeline_stages.stage_cells(result, step_s),
        "pause_share": user_program.pause_share(result), "data_wait_share": user_program.data_wait_share(result),
        "steady": measurement.steady, "flags": join_words(measurement.flags),
    }  # fmt: skip


def link_cells(monitor: MonitorRecord, step_s: float | None) -> dict[str, float | None]:
    """Return the bytes over PCIe and NVLink in a step, of all GPUs together; None unless every one was measured."""
    cells: dict[str, float | None] = {}
    for column in LINK_COLUMNS:
        rates = [getattr(device, f"{column.removesuffix('_per_step')}_per_s") for device in monitor.devices]
        measured = [rate for rate in rates if rate is not None]
        is_complete = step_s is not None and rates and len(measured) == len(rates)
        cells[column] = sum(measured) * step_s if is_complete and step_s else None
    return cells


def _cost_cells(result: Result, epoch_s: float | None) -> dict[str, float | None]:
    """Return device-hours and joules. Those to the target are computed from the recorded seconds to it, the joules with
    the mean power of all devices over the measured phase."""
    gpus, target_s, power_w = result.scale.gpus, result.quality.time_to_target_s, result.monitor.gpu_power_w_mean
    samples, energy_j = result.workload.train_samples, result.monitor.energy_j
    measured = training_columns.count_measured_samples(result) or sum(sum(rank.block_samples) for rank in result.ranks)
    per_sample = energy_j / measured if energy_j is not None and measured else None
    return {
        "energy_j_per_sample": per_sample,
        "energy_j_per_epoch": per_sample * samples if per_sample is not None and samples else None,
        "energy_j_to_target": power_w * target_s if power_w is not None and target_s is not None else None,
        "device_hours_per_epoch": gpus * epoch_s / HOUR_S if epoch_s is not None else None,
        "device_hours_to_target": gpus * target_s / HOUR_S if target_s is not None else None,
    }


def speedup_cells(
    kind: str, devices: float, speedup: float | None, interval: Estimate | None
) -> dict[str, float | None]:
    """Return the columns of a speedup and its efficiency; `devices` is the ratio to the devices of the baseline."""
    share = None if interval is None else scale_estimate(interval, 1 / devices)
    return {
        **interval_cells(f"speedup_{kind}", f"speedup_{kind}", speedup, interval),
        **interval_cells(f"efficiency_{kind}", f"efficiency_{kind}", speedup / devices if speedup else None, share),
    }


def interval_cells(name: str, stem: str, value: float | None, interval: Estimate | None) -> dict[str, float | None]:
    """Return the columns of a figure and its limits; a limit that the data do not give, infinite in the interval, is
    null."""
    low, high = (interval.low, interval.high) if interval else (math.inf, math.inf)
    return {
        name: value,
        f"{stem}_low": None if math.isinf(low) else low,
        f"{stem}_high": None if math.isinf(high) else high,
    }


def _count_steps(block_s: list[float], block_steps: int | None) -> int | None:
    return None if block_steps is None else len(block_s) * block_steps


def _resident_bytes(result: Result) -> int | None:
    """Return the most memory that all ranks held at once as the monitor saw it, or the sum of the ranks' own peaks
    where it saw none: the slots of runs in turns are shorter than its interval. None unless all ranks know theirs."""
    if result.monitor.rss_anon_bytes_max is not None:
        return result.monitor.rss_anon_bytes_max
    peaks = [rank.rss_anon_peak_bytes for rank in result.ranks]
    return sum(peak for peak in peaks if peak is not None) if peaks and None not in peaks else None
