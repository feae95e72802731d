"""Runs as rows of the frame: what the record of a run gives by itself, and how the run compares with others."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.analysis import collectives, identity, step_breakdown, throughput, user_program
from scalebench.analysis.columns import COLUMN_KINDS, COUNT, FRAME_COLUMNS, RATE, TEXT, interval_cells
from scalebench.analysis.identity import Baselines, RunIdentity
from scalebench.analysis.throughput import RoundRates
from scalebench.core.errors import InputError
from scalebench.core.json_files import build_record
from scalebench.core.machine import nccl_log
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import LOWER_IS_BETTER, Result
from scalebench.core.run_folder import check_folder_name
from scalebench.core.spec import HardwareSpec, StopSpec, has_stop, train_defaults
from scalebench.core.stats.estimates import Estimate, scale_estimate

HOUR_S = 3600.0
MALFORMED_RECORD_ERRORS = (ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError, RecursionError)
MIN_RATE, MAX_RATE = 1e-100, 1e100  # samples/s: the quotient of any two is a number
MAX_COUNT = 2**63 - 1  # of a column of integers
LINK_NAMES = [name.removesuffix("_per_step") for name in FRAME_COLUMNS if name.endswith("_bytes_per_step")]
TRAIN_COLUMNS = ("optimizer", "weight_decay", "learning_rate_rule", "base_batch", "accumulate")
# Settings of `train` that share the column train_options, as a strategy's options do: each rarely has another value
# than its default.
TRAIN_OPTION_KEYS = ("dropout", "momentum", "clip_norm", "schedule", "warmup_epochs", "decay_epochs", "decay")
Cells = dict[str, Any]


@dataclass(frozen=True)
class RunSummary(RunIdentity):
    """A loaded run: its own figures without the series that they were computed from, which would not fit in memory."""

    reason: str | None
    cohort: str | None  # of the runs that it took turns with
    sample_key: str
    throughput: Estimate | None
    round_rates: RoundRates
    cells: Cells  # of its row in the frame, without those that compare it with other runs
    has_requested_probes: bool  # collective operations or bandwidths, which are measured on request

    @property
    def rate(self) -> float | None:
        """Samples/s."""
        return None if self.throughput is None else self.throughput.value

    @property
    def label(self) -> str:
        """Its name as a baseline that a user names, for the head of a column: `horovod_nccl gpus=1 on alpha`."""
        return f"{self.scale.strategy} gpus={self.scale.gpus} on {self.scale.hardware}"


def summarize_run(result: Result, folder: Path) -> RunSummary:
    """Return all that the rows of a frame need of this record.

    Raises InputError, in one line, if its fields hold no measurement: on reading only their types are checked.
    """
    check_folder_name(folder)
    try:
        if result.scale.gpus < 1:
            raise ValueError(f"{result.scale.gpus} devices")
        build_record(HardwareSpec, result.spec.get("hardware", {}))  # whose figures predictions compute with
        measurement = throughput.Measurement(result)
        cells = _make_own_cells(result, folder, measurement)
        _check(cells)
        probes = [rank.probes for rank in result.ranks if rank.probes is not None]
        has_requested_probes = any(record.collectives or record.bandwidth for record in probes)
        if has_requested_probes:  # what gives no figures raises an error here, where its file is known
            collectives.list_collectives(result)
            collectives.list_transfers(result)
        return RunSummary(
            **vars(identity.identify(result)), reason=result.reason, cohort=result.cohort,
            sample_key=identity.sample_key(result), throughput=measurement.throughput,
            round_rates=measurement.round_rates, cells=cells, has_requested_probes=has_requested_probes,
        )  # fmt: skip
    except MALFORMED_RECORD_ERRORS as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{folder}: its record holds what no run leaves ({text}); remove its folder") from error


def _check(cells: Cells) -> None:
    """Raise ValueError for a value that would otherwise fail in a frame, where its file is no longer known."""
    rate = cells[RATE]
    if rate is not None and not MIN_RATE < rate < MAX_RATE:
        raise ValueError(f"{rate} samples/s")
    for name, value in cells.items():
        if value is None:
            continue
        kind = COLUMN_KINDS.get(name)
        is_wrong_kind = isinstance(value, str) != (kind == TEXT)
        if isinstance(value, str):
            value.encode()  # a lone surrogate raises ValueError: no column can hold it
        elif isinstance(value, int):
            is_wrong_kind |= abs(value) > MAX_COUNT
        elif isinstance(value, float):
            is_wrong_kind |= kind == COUNT and not value.is_integer()
        if is_wrong_kind:
            raise ValueError(f"{name} is {value}")


def make_row(run: RunSummary, baselines: Baselines[RunSummary], named: RunSummary | None = None) -> Cells:
    """Return the cells of one run, against its self and bare baseline and the one that a user names (columns `given`),
    if it may be compared with that."""
    cells, seconds = dict(run.cells), run.cells["time_to_target_s"]
    own, bare = baselines.find_self(run), baselines.find_bare(run)
    named = None if named is None or not identity.is_comparable(run, named) else named
    for kind, baseline in (("self", own), ("bare", bare), ("given", named)):
        devices = baseline.scale.gpus if baseline is not None else 1
        cells[f"baseline_{kind}_id"] = baseline.run_id if baseline is not None else None
        cells.update(speedup_cells(kind, run.scale.gpus / devices, divide_throughputs(run, baseline)))
        if kind != "given":
            base_s = None if baseline is None else baseline.cells["time_to_target_s"]
            cells[f"speedup_target_{kind}"] = base_s / seconds if seconds and base_s else None
    if scaling := user_program.scaling_flags(run, own):
        cells["flags"] = " ".join([*filter(None, [cells["flags"]]), *scaling])
    is_wrapped = own is not None and bare is not None and own.strategy_key != bare.strategy_key
    return cells | overhead_cells(divide_throughputs(own, bare) if is_wrapped and own is not None else None)


def divide_throughputs(run: RunSummary, baseline: RunSummary | None) -> Estimate | None:
    """Return throughput over the baseline's, formed within rounds if the two runs took turns.

    There are no limits, since two single starts do not show how much starts differ; ratios over repeats have them.
    """
    if baseline is None or run.rate is None or baseline.rate is None:
        return None
    if baseline.run_id == run.run_id:
        return Estimate(1.0)
    return Estimate(throughput.ratio_in_rounds(run.round_rates, baseline.round_rates) or run.rate / baseline.rate)


def speedup_cells(kind: str, devices: float, speedup: Estimate | None) -> Cells:
    """Return the columns of a speedup and its efficiency; `devices` is the ratio to the devices of the baseline."""
    efficiency = None if speedup is None else scale_estimate(speedup, 1 / devices)
    return interval_cells(f"speedup_{kind}", speedup) | interval_cells(f"efficiency_{kind}", efficiency)


def overhead_cells(ratio: Estimate | None) -> Cells:
    """Return the columns of the cost of a wrapper, for the throughput of the strategy on one device over the bare
    one."""
    lost = None if ratio is None else Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
    return interval_cells("overhead_share", lost)


def _make_own_cells(result: Result, folder: Path, measurement: throughput.Measurement) -> Cells:
    """Return the columns that need no other run. One with the name of a field of the record is that field."""
    w, m, step_s, rate = result.workload, result.monitor, measurement.step_s, measurement.throughput
    parts = (m, result.quality, result.phases, w, result.scale, result)
    names = ((part, field.name) for part in parts for field in dataclasses.fields(part))
    fields = {name: getattr(part, name) for part, name in names if name in COLUMN_KINDS}
    first, job = result.ranks[0] if result.ranks else None, result.scheduler
    model_options = dict(result.spec.get("model", {}).get("options") or {})
    if w.tokens_per_sample is not None:
        model_options.pop("sequence_length", None)  # a column of its own
    peaks = [peak for rank in result.ranks for peak in rank.peak_memory_bytes if peak is not None]
    # The monitor sees the most memory that all ranks held at once. The slots of runs in turns are shorter than its
    # interval: there it is the sum of the ranks' own peaks, unless a rank does not know its own.
    resident, anonymous = ([size for rank in result.ranks if (size := getattr(rank, name)) is not None]
                           for name in ("rss_peak_bytes", "rss_anon_peak_bytes"))  # fmt: skip
    all_anonymous = sum(anonymous) if anonymous and len(anonymous) == len(result.ranks) else None
    # Bytes over PCIe and NVLink are those of all GPUs together, unless one was not measured.
    links = {name: [getattr(device, f"{name}_per_s") for device in m.devices] for name in LINK_NAMES}
    epoch_s = w.train_samples / rate.value if w.train_samples and rate else epoch_s_of_training(result)
    return fields | {
        "path": str(folder), "machine": str(classify_machine(result.machine)),
        "job_id": job.job_id if job else None, "queued_s": job.queued_s if job else None,
        "mfu": measurement.mfu, "compile": {"False": "none", "True": "default"}.get(str(w.compile), str(w.compile)),
        "model_options": " ".join(f"{key}={option}" for key, option in model_options.items()) or None,
        **interval_cells(RATE, rate), **throughput.token_cells(result, rate),
        "interval_over": "blocks" if rate and math.isfinite(rate.low) else None,
        "in_turns": bool(measurement.round_rates),
        "step_s": step_s, **measurement.step_spread(), **step_breakdown.breakdown_cells(result, step_s),
        **step_breakdown.stage_cells(result, step_s),
        "epoch_s": epoch_s, "measured_s": result.phases.measure_s,
        "warmup_steps": len(first.warmup_block_s) * first.warmup_block_steps
        if first and first.warmup_block_steps is not None else None,
        "measured_steps": len(first.block_s) * first.block_steps
        if first and first.block_steps is not None else None,
        **{f"{name}_per_step": sum(rates) * step_s if step_s and rates and None not in rates else None
           for name, rates in links.items()},
        **_cost_cells(result, epoch_s), **training_cells(result),
        "throttle_reasons": " ".join(m.throttle_reasons or []) or None,
        "other_programs": " ".join(name.replace(" ", "_") for name in m.other_programs or []) or None,
        "rss_anon_bytes_max": all_anonymous if m.rss_anon_bytes_max is None else m.rss_anon_bytes_max,
        "peak_memory_bytes": max(peaks, default=None), "rss_peak_bytes": max(resident, default=None),
        **identity.settings_cells(result), "transports": nccl_log.summarize_transports(result.sync.transports),
        "pause_share": user_program.pause_share(result), "data_wait_share": user_program.data_wait_share(result),
        "steady": measurement.steady, "flags": " ".join(measurement.list_flags()) or None,
    }  # fmt: skip


def training_cells(result: Result) -> Cells:
    """Return the columns of a training to a stop, most of which are null for a run that only measured its throughput.

    `training_id` is equal for runs that differ in nothing but seed and repeat, null for a run without a stop.
    """
    q, train, last = result.quality, result.spec.get("train", {}), next(reversed(result.quality.curve), None)
    name, stop = q.metric_name or "", train.get("stop") or {}
    metric, train_metric = (last.metrics.get(name), last.train_metrics.get(name)) if last else (None, None)
    metrics = [point.metrics[name] for point in q.curve if name in point.metrics]
    return {
        **{key: train.get(key) for key in TRAIN_COLUMNS}, "train_options": format_train_options(train),
        "target": stop.get("target"), "trained_s": last.train_s if last else None,
        "trained_steps": last.step if last else None, "trained_epochs": last.epochs if last else None,
        "train_metric": train_metric, "generalisation_gap": generalisation_gap(name, metric, train_metric),
        "best_metric": (min if name.startswith(LOWER_IS_BETTER) else max)(metrics, default=None),
        "evaluate_s": sum(point.evaluate_s for point in q.curve) if q.curve else result.phases.evaluate_s,
        "points": len(q.curve) or None,
        "max_batch_per_device": q.max_batch.batch_per_device if q.max_batch else None,
        "memory_limit_bytes": q.max_batch.limit_bytes if q.max_batch else None,
        "training_id": identity.training_key(result) if has_stop(StopSpec(**stop)) else None,
    }  # fmt: skip


def _cost_cells(result: Result, epoch_s: float | None) -> Cells:
    """Return device-hours and joules; those to the target with the mean power over the measured phase."""
    gpus, target_s, power_w = result.scale.gpus, result.quality.time_to_target_s, result.monitor.gpu_power_w_mean
    samples, energy_j = result.workload.train_samples, result.monitor.energy_j
    count = count_measured_samples(result) or sum(sum(rank.block_samples) for rank in result.ranks)
    per_sample = energy_j / count if energy_j is not None and count else None
    return {
        "energy_j_per_sample": per_sample,
        "energy_j_per_epoch": per_sample * samples if per_sample is not None and samples else None,
        "energy_j_to_target": power_w * target_s if power_w is not None and target_s is not None else None,
        "device_hours_per_epoch": gpus * epoch_s / HOUR_S if epoch_s is not None else None,
        "device_hours_to_target": gpus * target_s / HOUR_S if target_s is not None else None,
    }


def format_train_options(train: dict[str, Any]) -> str | None:
    """Return the settings that differ from their defaults and have an effect: `schedule=cosine warmup_epochs=5`."""
    defaults, texts = train_defaults(), []
    has_effect = dict.fromkeys(("decay_epochs", "decay"), train.get("schedule") == "step")
    has_effect["momentum"] = train.get("optimizer") in ("momentum", "nesterov")
    for key in TRAIN_OPTION_KEYS:
        value = train.get(key, defaults[key])
        if value != defaults[key] and has_effect.get(key, True):
            texts.append(f"{key}={str(value).lower() if isinstance(value, bool) else str(value).replace(' ', '')}")
    return " ".join(texts) or None


def generalisation_gap(metric: str, validation: float | None, training: float | None) -> float | None:
    """Return how much worse the metric is on unseen samples, in its own unit: above 0 is worse."""
    if validation is None or training is None:
        return None
    return validation - training if metric.startswith(LOWER_IS_BETTER) else training - validation


def epoch_s_of_training(result: Result) -> float | None:
    """Return the seconds of an epoch of a training that ended within warm-up, from all its steps but the first; None if
    it had less than one epoch of them, which cannot stand for a full one."""
    if result.status != "ok" or not result.quality.curve or not result.workload.train_samples:
        return None
    last = result.quality.curve[-1]
    epochs = (last.samples - result.scale.samples_per_step) / result.workload.train_samples
    return last.train_s / epochs if epochs >= 1 and last.train_s > 0 else None


def count_measured_samples(result: Result) -> int | None:
    """Count the samples of the measured phase of a training, which its energy is for, with those of blocks that a point
    of the curve cut short; None for a run that measured its throughput."""
    quality, work, first = result.quality, result.workload, result.ranks[0] if result.ranks else None
    if not quality.curve or first is None or not work.steps_per_epoch or not work.train_samples:
        return None
    warmup_steps = len(first.warmup_block_s) * (first.warmup_block_steps or 1)
    epochs, steps = divmod(warmup_steps, work.steps_per_epoch)
    samples = quality.curve[-1].samples - epochs * work.train_samples - steps * result.scale.samples_per_step
    return samples if samples > 0 else None
