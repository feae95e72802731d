"""One run as a row of the frame: what its record says alone, and how it compares with others. Layer 1."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scalebench.analysis import baselines, pipeline_stages, throughput, training_columns, update_breakdown
from scalebench.analysis.columns import COLUMNS, TEXT
from scalebench.analysis.run_summary import Figures
from scalebench.core.config_files import option_defaults
from scalebench.core.errors import InputError
from scalebench.core.machine import nccl_log
from scalebench.core.machine.machine_class import kind_of
from scalebench.core.result import Monitor, Result
from scalebench.core.stats.estimates import Interval

HOUR_S = 3600.0
FORESEEN = (ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError, RecursionError)
SLOWEST, FASTEST = 1e-100, 1e100  # samples/s: the quotient of any two is a number
OF_MONITOR = [f.name for f in dataclasses.fields(Monitor) if f.name in COLUMNS and f.name != "reason"]
TEXTS = frozenset(TEXT)
LARGEST = 2**63 - 1  # of a column of counts
SAMPLE_KEYS = {"model": ("name", "options", "input_shape", "outputs"), "dataset": ("name", "image_size")}


def figures_of(result: Result, folder: Path) -> Figures:
    """All that the rows of a frame need of this record.

    InputError, in one line, where what its fields hold is no measurement: types alone are checked when it is read.
    """
    try:
        return _figures_of(result, folder)
    except FORESEEN as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{folder}: its record holds what no run leaves ({words}); remove its folder") from error


def _figures_of(result: Result, folder: Path) -> Figures:
    measured = throughput.measured(result)
    cells = _own_cells(result, folder, measured)
    _check(result, cells)
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    return Figures(
        result.run_id, result.started_at, result.status, result.reason, result.fingerprint, result.scale,
        baselines.started(result), baselines.comparison_keys(result), baselines.placement(result),
        baselines.as_it_comes(result), measured.throughput, _sample(result), cells,
        any(one.collectives or one.bandwidth for one in probes),
    )  # fmt: skip


def _check(result: Result, cells: dict[str, Any]) -> None:
    """ValueError for what would only fail among the rows of others, where nobody could tell whose it is."""
    if result.scale.gpus < 1:
        raise ValueError(f"{result.scale.gpus} devices")
    rate = cells["throughput_samples_per_s"]
    if rate is not None and not SLOWEST < rate < FASTEST:
        raise ValueError(f"{rate} samples/s")
    for name, value in cells.items():
        if value is None:
            continue
        kind = type(value)
        if (kind is str) is not (name in TEXTS) or (kind is int and abs(value) > LARGEST):
            raise ValueError(f"{name} is {value}")


def _sample(result: Result) -> str:
    """What one sample is and what is done with it. Older records lack some of it."""
    groups = {group: result.spec.get(group, {}) for group in SAMPLE_KEYS}
    return json.dumps([[groups[g].get(key) for key in keys] for g, keys in SAMPLE_KEYS.items()], sort_keys=True)


def row(figures: Figures, among: baselines.Baselines[Figures], given: Figures | None = None) -> dict[str, Any]:
    """One run as a row, against the baselines `among` others and the `given` one."""
    cells, gpus = dict(figures.cells), figures.scale.gpus
    own, bare = among.self_of(figures), among.bare_of(figures)
    efficiency = None
    for kind, baseline in (("self", own), ("bare", bare), ("given", given)):
        value, interval = throughput.speedup(figures, baseline)
        devices = baseline.scale.gpus if baseline is not None else 1
        cells[f"baseline_{kind}_id"] = baseline.run_id if baseline is not None else None
        cells.update(compared(kind, gpus / devices, value, interval))
        if kind != "given":
            cells[f"speedup_target_{kind}"] = training_columns.target_speedup(figures, baseline)
        efficiency = throughput.per_device(interval, gpus) if kind == "self" else efficiency
    cells.update(limits("overhead_share", "overhead_share", *throughput.overhead(own, bare)))
    if figures.status == "ok" and (more := throughput.superlinear(efficiency)):
        cells["flags"] = joined([*(cells["flags"] or "").split(), *more])
    return cells


def _own_cells(result: Result, folder: Path, measured: throughput.Measured) -> dict[str, Any]:
    """The columns that need no other row."""
    s, w, p, m, q = result.scale, result.workload, result.phases, result.monitor, result.quality
    (value, interval), step_s = measured.throughput, measured.step_s
    first = result.ranks[0] if result.ranks else None
    epoch_s = w.train_samples / value if w.train_samples and value else training_columns.epoch_s(result)
    return {
        "run_id": result.run_id, "started_at": result.started_at, "status": result.status,
        "reason": result.reason, "path": str(folder), "fingerprint": result.fingerprint,
        "repeat": s.repeat, "seed": s.seed, "model": w.model, "dataset": w.dataset, "strategy": s.strategy,
        "framework": s.framework, "framework_version": s.framework_version, "backend_used": s.backend_used,
        "hardware": s.hardware, "gpus": s.gpus, "nodes": s.nodes, "processes": s.processes,
        "machine": str(kind_of(result.machine)), **_queued(result),
        "scaling": s.scaling, "batch_per_device": s.batch_per_device, "global_batch": s.global_batch,
        "precision": w.precision, "data_format": w.data_format, "feed": w.feed,
        "model_params": w.model_params, "gradient_bytes": w.gradient_bytes,
        "flops_per_sample": w.flops_per_sample,
        **limits("throughput_samples_per_s", "throughput", value, interval),
        "interval_over": "blocks" if interval else None, "step_s": step_s, **update_breakdown.cells(result, step_s),
        "epoch_s": epoch_s,
        "steps_per_epoch": w.steps_per_epoch, "launch_s": p.launch_s, "setup_s": p.setup_s,
        "warmup_s": p.warmup_s, "measured_s": p.measure_s, "wall_s": p.wall_s,
        "warmup_steps": _steps(first.warmup_block_s, first.warmup_block_steps) if first else None,
        "measured_steps": _steps(first.block_s, first.block_steps) if first else None,
        **{name: getattr(m, name) for name in OF_MONITOR},
        "throttle_reasons": joined(m.throttle_reasons), **_costs(result, epoch_s),
        "peak_memory_bytes": _largest(b for r in result.ranks for b in r.peak_memory_bytes),
        "rss_peak_bytes": _largest(r.rss_peak_bytes for r in result.ranks),
        "final_loss": q.final_loss, "metric_name": q.metric_name, "metric": q.metric,
        "time_to_target_s": q.time_to_target_s,
        "precision_used": w.precision_used, "data_format_used": w.data_format_used,
        "compiler_used": w.compiler_used, "prefetch": w.prefetch, "options": _chosen_options(result),
        **_placed(result), **training_columns.cells(result), **pipeline_stages.cells(result, step_s),
        "steady": measured.steady, "flags": joined(measured.flags),
    }  # fmt: skip


def _queued(result: Result) -> dict[str, Any]:
    job = result.scheduler
    return {"job_id": job.job_id if job else None, "queued_s": job.queued_s if job else None}


def _costs(result: Result, epoch_s: float | None) -> dict[str, float | None]:
    """Device-hours and joules. What is spent until the target: as the mean of the measured updates, where the record
    tells the seconds until then; the joules by the power of all devices over the measured phase."""
    gpus, target_s, power_w = result.scale.gpus, result.quality.time_to_target_s, result.monitor.gpu_power_w_mean
    per_sample, samples = _energy_per_sample(result), result.workload.train_samples
    return {
        "energy_j_per_sample": per_sample,
        "energy_j_per_epoch": per_sample * samples if per_sample is not None and samples else None,
        "energy_j_to_target": power_w * target_s if power_w is not None and target_s is not None else None,
        "device_hours_per_epoch": gpus * epoch_s / HOUR_S if epoch_s is not None else None,
        "device_hours_to_target": gpus * target_s / HOUR_S if target_s is not None else None,
    }


def compared(kind: str, devices: float, speedup: float | None, interval: Interval | None) -> dict[str, float | None]:
    """The columns of a speedup, and of the efficiency that it means, against a baseline of one device; `devices` are
    how many times those of the baseline otherwise."""
    share = throughput.per_device(interval, devices)
    return {
        **limits(f"speedup_{kind}", f"speedup_{kind}", speedup, interval),
        **limits(f"efficiency_{kind}", f"efficiency_{kind}", speedup / devices if speedup else None, share),
    }


def _chosen_options(result: Result) -> str | None:
    """The strategy's options that are not as its YAML has them: `loop=fit`."""
    defaults = option_defaults(result.scale.strategy)
    options = result.spec.get("strategy", {}).get("options") or {}
    return joined([f"{key}={value}" for key, value in options.items() if value != defaults.get(key, value)])


def _placed(result: Result) -> dict[str, str | None]:
    """The devices and variables that were chosen, and what NCCL made of it."""
    hardware = result.spec.get("hardware", {})
    variables = hardware.get("environment") or {}
    return {
        "device_ids": joined([str(number) for number in hardware.get("device_ids") or []]),
        "bind": hardware.get("bind"),
        "layout": hardware.get("layout"),
        "environment": joined([f"{name}={value}" for name, value in variables.items()]),
        "transports": nccl_log.summary(result.sync.transports),
    }


def limits(name: str, stem: str, value: float | None, interval: Interval | None) -> dict[str, float | None]:
    """A figure and its limits; one that the data cannot give, infinite in the interval, is null."""
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{stem}_low": _finite(low), f"{stem}_high": _finite(high)}


def _finite(limit: float | None) -> float | None:
    return None if limit is None or math.isinf(limit) else limit


def _steps(block_s: list[float], block_steps: int | None) -> int | None:
    return None if block_steps is None else len(block_s) * block_steps


def _energy_per_sample(result: Result) -> float | None:
    samples = training_columns.measured_samples(result) or sum(sum(rank.block_samples) for rank in result.ranks)
    return result.monitor.energy_j / samples if result.monitor.energy_j is not None and samples else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def joined(words: list[str] | None) -> str | None:
    return " ".join(words) if words else None
