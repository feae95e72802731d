"""Throughput, speedup and efficiency of single runs, computed on load from the raw blocks, and the flags that qualify
them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalebench.analysis import step_breakdown, user_program
from scalebench.analysis.blocks import (
    CountedBlocks,
    count_all_blocks,
    count_blocks,
    counting_flags,
    ratio_in_rounds,
    round_rates,
    rounds_left_out,
    wanted_half_width,
)
from scalebench.analysis.identity import comparison_key
from scalebench.analysis.run_summary import Run, RunSummary
from scalebench.core.machine.peak_flops import find_peak_flops, has_fast_tensor_cores
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, FloatArray, estimate_throughput

MAX_REPEAT_RATIO = 1.1
MIN_HOST_WAIT_SHARE = 0.5  # of a step, from which on the host is what limits it
MIN_BUSY_SHARE = 0.5  # of a step, from which on a GPU is what limits it
SPREAD_COLUMNS = ("step_s_median", "step_s_p95", "step_cv")
Figure = tuple[float | None, Estimate | None]


@dataclass(frozen=True)
class Measurement:
    """The figures of one run's measured blocks, computed from one pass over them."""

    throughput: Figure
    round_rates: dict[int, float]
    step_s: float | None
    step_spread: dict[str, float | None]  # columns of the frame
    steady: bool | None
    mfu: float | None  # model FLOPs utilization
    flags: list[str]  # without those that compare the run with others


def evaluate_blocks(result: Result) -> Measurement:
    """Return throughput, step_s, steady and flags of a run."""
    target = wanted_half_width(result)
    groups = count_all_blocks(result, target)
    figure, blocks = _throughput(result, groups), _step_blocks(result, groups)
    rate, interval = figure
    mfu, step_s, drift = flops_utilization(result, rate), _mean(blocks), _drift(groups)
    flags = list_flags(result, interval, target, groups)
    flags += [*user_program.program_flags(result), *utilization_flags(result, mfu, step_s)]
    read_rate = result.workload.read_samples_per_s  # by one process, from the user's Dataset
    flags += ["slow_reading"] if rate is not None and read_rate is not None and read_rate < rate else []
    return Measurement(
        figure, round_rates(groups, result.scale.independent), step_s, describe_step_spread(blocks),
        None if drift is None else not drift, mfu, flags,
    )  # fmt: skip


def throughput(run: Run) -> Figure:
    """Return (samples/s over all devices, its 95 % interval over blocks); None where not measured.

    Too few blocks for an interval still give the figure. Replicas that are not synchronous run to a common deadline:
    their throughputs add up, each without its last block, which reaches past it, unless it is the only one.
    """
    if isinstance(run, RunSummary):
        return run.throughput
    return _throughput(run, count_all_blocks(run, wanted_half_width(run)))


def flops_utilization(result: Result, rate: float | None) -> float | None:
    """Return the model FLOPs utilization (MFU) at `rate` samples/s: FLOP/s of training over the peak of all devices.

    None where the FLOPs of the model or a peak are unknown, on CPUs, and of a run that is not ok. Operations that a
    strategy repeats, such as recomputed activations, do not count. Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    peak, flops = peak_flops(result), result.workload.flops_per_sample
    return None if result.status != "ok" or rate is None or not peak or not flops else rate * flops / peak


def peak_flops(result: Result) -> float | None:
    """Return the peak FLOP/s of all devices of a run together, at the precision that was observed.

    The devices are those that the monitor watched; without it they are known only where all GPUs of the run's machines
    are of one kind. A part of a GPU (MIG) has no peak.
    """
    machines, scale = [result.machine, *(result.other_machines or [])], result.scale
    if scale.device != "cuda" or len(machines) != scale.nodes:
        return None
    peaks = {
        (node, gpu.index): None if gpu.mig else find_peak_flops(gpu.name, result.workload.precision_used)
        for node, machine in enumerate(machines)
        for gpu in machine.gpus
    }
    used = [peaks.get((device.node or 0, device.index)) for device in result.monitor.devices]
    if len(used) != scale.gpus:
        used = list(peaks.values())[:1] * scale.gpus if len(set(peaks.values())) == 1 else []
    present = [peak for peak in used if peak is not None]
    return sum(present) if present and len(present) == len(used) else None


def step_s(result: Result) -> float | None:
    """Return the mean seconds of one step of the group (of its slowest rank)."""
    return _mean(_step_blocks(result, count_all_blocks(result, wanted_half_width(result))))


def find_drift(result: Result, target: Any) -> list[str] | None:
    """Return `drifts` if the blocks drift or change their level (steady_state.find_unsteadiness) after leftover
    warm-up; None if there are too few to say. Replicas that are not synchronous have a series each."""
    return _drift(count_all_blocks(result, target))


def _throughput(result: Result, groups: Sequence[CountedBlocks]) -> Figure:
    if not groups:
        return None, None
    if not result.scale.independent:
        return _throughput_of_blocks(groups[0].seconds, groups[0].samples)
    figures = [_throughput_of_blocks(*group.without_last()[:2]) for group in groups]
    values, intervals = zip(*figures, strict=True)
    if any(value is None for value in values):
        return None, None
    if any(interval is None for interval in intervals):
        return sum(values), None
    return sum(values), combine(dict.fromkeys(range(len(intervals)), 1.0), dict(enumerate(intervals)))


def _throughput_of_blocks(seconds: FloatArray, samples: FloatArray) -> Figure:
    if not len(seconds) or np.minimum.reduce(seconds) < 0 or np.minimum.reduce(samples) < 1:
        return None, None
    total_s = sum(seconds.tolist())
    return (sum(samples.tolist()) / total_s, estimate_throughput(seconds, samples)) if total_s else (None, None)


def _step_blocks(result: Result, groups: Sequence[CountedBlocks]) -> FloatArray:
    """Return the mean seconds of a step in each counted block of the group (of its slowest rank)."""
    if not groups or not result.ranks[0].block_steps:
        return np.empty(0)
    group = groups[0]
    if result.scale.independent:
        group = count_blocks(result.ranks, wanted_half_width(result), rounds_left_out(result))
    blocks: FloatArray = group.seconds / result.ranks[0].block_steps
    return blocks


def _mean(blocks: FloatArray) -> float | None:
    return sum(blocks.tolist()) / len(blocks) if len(blocks) else None


def describe_step_spread(blocks: FloatArray) -> dict[str, float | None]:
    """Return the columns that say how step times vary from block to block: median, 95th percentile (interpolated
    between blocks) and coefficient of variation (standard deviation over mean, from two blocks on)."""
    if not len(blocks):
        return dict.fromkeys(SPREAD_COLUMNS)
    mean = float(np.add.reduce(blocks)) / len(blocks)
    median, p95 = np.quantile(blocks, (0.5, 0.95)).tolist()
    deviations = blocks - mean
    variance = float(deviations @ deviations) / max(1, len(blocks) - 1)
    cv = math.sqrt(variance) / mean if mean and len(blocks) > 1 else None
    return dict(zip(SPREAD_COLUMNS, (median, p95, cv), strict=True))


def _drift(groups: Sequence[CountedBlocks]) -> list[str] | None:
    if not groups or any(group.unsteadiness is None for group in groups):
        return None
    return ["drifts"] if any(group.unsteadiness for group in groups) else []


def list_flags(
    result: Result, interval: Estimate | None, target: Any, groups: Sequence[CountedBlocks] = ()
) -> list[str]:
    """Return the flags of a row: those of the record, a missing or wide interval, an unsteady series."""
    flags = counting_flags(result)
    if result.status == "ok":
        if interval is None or not math.isfinite(interval.high):
            flags.append("no_interval")
        elif result.quality.curve:  # the training went on to its end, however precise its throughput was
            pass
        elif isinstance(target, (int, float)):
            repeats = result.spec.get("measure", {}).get("repeats") or 1  # each may be wider (RunSpec.repeat_settings)
            flags += ["target_missed"] if interval.relative_half_width() > target * math.sqrt(repeats) else []
        flags += ["warmup_left"] if any(group.warmup_blocks for group in groups) else []
        flags += _drift(groups) or []
    return flags


def superlinear_flags(efficiency: Estimate | None, device: str) -> list[str]:
    """Return the flag of an efficiency above 1, which says whether its interval is above 1 too. On CPU workers, which
    share the processors that there are, that is an error of the measurement."""
    if efficiency is None or efficiency.value <= 1 or not math.isfinite(efficiency.low):
        return []
    if efficiency.low <= 1:
        return ["superlinear_within_noise"]
    return ["superlinear_on_cpu"] if device == "cpu" else ["superlinear"]


def utilization_flags(result: Result, mfu: float | None, step_s: float | None) -> list[str]:
    """Return the flags of GPUs that wait for their host, of a model FLOPs utilization above 1, and of fast tensor cores
    that were left idle."""
    gpus = [gpu for machine in (result.machine, *(result.other_machines or [])) for gpu in machine.gpus]
    computes_float32 = result.scale.device == "cuda" and result.workload.precision_used == "float32"
    busy = busy_share(result, step_s) if computes_float32 else None
    computes_float32 &= busy is None or busy >= MIN_BUSY_SHARE  # faster kernels shorten no step that waits for its host
    host_wait = step_breakdown.gpu_cells(result, step_s)["host_wait_share"]
    flags = {
        "host_limited": host_wait is not None and host_wait >= MIN_HOST_WAIT_SHARE,
        "mfu_above_1": mfu is not None and mfu > 1,
        "no_tensor_cores": computes_float32 and any(has_fast_tensor_cores(gpu.name) for gpu in gpus),
    }
    return [name for name, is_set in flags.items() if is_set]


def busy_share(result: Result, step_s: float | None) -> float | None:
    """Return the share of a step in which its GPUs run kernels: by the profile, else by NVML; None where both are
    silent."""
    profiles = [rank.probes.profile for rank in result.ranks if rank.probes is not None]
    kernels_s = [each.kernel_s for each in profiles if each is not None and each.kernel_s is not None]
    if kernels_s and step_s:
        return statistics.fmean(kernels_s) / step_s
    seen = [each.gpu_util_mean for each in result.monitor.devices if each.gpu_util_mean is not None]
    return statistics.fmean(seen) if seen else None


def repeats_differ_flags(rates: Iterable[float]) -> list[str]:
    """Return the flag of repeats of which the fastest is more than MAX_REPEAT_RATIO times as fast as the slowest."""
    rates = list(rates)
    return ["repeats_differ"] if max(rates) > MAX_REPEAT_RATIO * min(rates) else []


def divide_throughputs(run: Run, baseline: Run | None) -> float | None:
    """Return throughput over the baseline's, formed within rounds if the two runs took turns.

    There is no interval, since two single starts do not show how much starts differ; ratios over repeats have one.
    """
    if baseline is None:
        return None
    value, base = throughput(run)[0], throughput(baseline)[0]
    if value is None or base is None:
        return None
    if baseline.run_id == run.run_id:
        return 1.0
    within_rounds = ratio_in_rounds(run, baseline)
    return value / base if within_rounds is None else within_rounds


def overhead(self_baseline: Run | None, bare: Run | None) -> float | None:
    """Return the share of the bare baseline's throughput that the strategy loses on one device: 1 - self / bare.

    It is negative where the strategy is faster than its bare baseline, and None for the bare strategy itself, whose two
    baselines are one run.
    """
    if self_baseline is None or bare is None or comparison_key(self_baseline, True) == comparison_key(bare, True):
        return None
    value = divide_throughputs(self_baseline, bare)
    return None if value is None else 1 - value
