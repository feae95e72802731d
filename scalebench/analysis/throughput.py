"""The measured blocks of a run and the figures that rest on them: which blocks count, throughput, the rate in each
round of runs that took turns, step times, and the flags that qualify them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from scalebench.analysis import step_breakdown, user_program
from scalebench.core.machine.peak_flops import find_peak_flops, has_fast_tensor_cores
from scalebench.core.result import RankRecord, Result
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, FloatArray, estimate_throughput
from scalebench.core.stats.steady_state import MIN_BLOCKS, find_unsteadiness, find_warmup_length

ROUND_COLUMNS = (
    "cohort", "round", "repeat", "run_id", "path", "strategy", "gpus", "global_batch", "started_at_s", "step_s",
    "throughput_samples_per_s", "disturbed", "counts",
)  # fmt: skip
MIN_ROUNDS = 8
MAX_WARMUP_SHARE = 0.25  # of the measured blocks
MIN_HOST_WAIT_SHARE = 0.5  # of a step, from which on the host is what limits it
MIN_BUSY_SHARE = 0.5  # of a step, from which on a GPU is what limits it
RoundRates = dict[tuple[str, int], float]  # samples/s over all devices, by cohort and round


@dataclass(frozen=True)
class CountedBlocks:
    """The measured blocks of a group of ranks without disturbed rounds and without leftover warm-up, and signs of
    unsteadiness (None: too few blocks)."""

    seconds: FloatArray
    samples: FloatArray
    rounds: npt.NDArray[np.int64]  # of the cohort, for each block; empty without turns
    warmup_blocks: int = 0  # left out at the beginning
    unsteadiness: list[str] | None = None


class Measurement:
    """The figures of one run, all from the same counted blocks, each computed when it is first used.

    A figure that was not measured is None, as all are of a run that is not ok. Replicas that are not synchronous have a
    series of blocks each.
    """

    def __init__(self, result: Result, counts_all: bool = False) -> None:
        """`counts_all`: neither disturbed rounds nor leftover warm-up are left out."""
        self.result = result
        target, left_out = (None, ()) if counts_all else (_wanted_half_width(result), rounds_left_out(result))
        groups = [[rank] for rank in result.ranks] if result.scale.independent else [result.ranks]
        is_measured = result.status == "ok" and result.ranks
        self.groups = [count_blocks(ranks, target, left_out) for ranks in groups] if is_measured else []
        self._timed_groups = self.groups
        if result.scale.independent:  # the last block of such a replica reaches past the common deadline
            ends = [max(1, len(group.seconds) - 1) for group in self.groups]
            self._timed_groups = [CountedBlocks(group.seconds[:end], group.samples[:end], group.rounds[:end])
                                  for group, end in zip(self.groups, ends, strict=True)]  # fmt: skip

    @cached_property
    def throughput(self) -> Estimate | None:
        """Samples/s over all devices with 95 % limits over blocks, without limits where there are too few of them. The
        throughputs of replicas that are not synchronous add up."""
        rates = {}
        for number, group in enumerate(self._timed_groups):
            seconds, samples = group.seconds, group.samples
            total_s = sum(seconds.tolist())
            if not total_s or np.minimum.reduce(seconds) < 0 or np.minimum.reduce(samples) < 1:
                return None
            rates[number] = estimate_throughput(seconds, samples) or Estimate(sum(samples.tolist()) / total_s)
        return (rates[0] if len(rates) == 1 else combine(dict.fromkeys(rates, 1.0), rates)) if rates else None

    @cached_property
    def round_rates(self) -> RoundRates:
        """The throughput in each round by the blocks that count; empty without turns."""
        if self.result.cohort is None or not self.groups:
            return {}
        of_groups: list[dict[int, float]] = []
        for group in self._timed_groups:
            begins = np.flatnonzero(np.diff(group.rounds, prepend=group.rounds[:1] - 1))
            if not len(begins):
                return {}
            seconds, samples = (np.add.reduceat(each, begins).tolist() for each in (group.seconds, group.samples))
            sums = zip(group.rounds[begins].tolist(), seconds, samples, strict=True)
            of_groups.append({number: n / total_s for number, total_s, n in sums if total_s > 0 and n > 0})
        shared = [number for number in sorted(of_groups[0]) if all(number in rates for rates in of_groups)]
        return {(self.result.cohort, number): math.fsum(rates[number] for rates in of_groups) for number in shared}

    @cached_property
    def step_blocks_s(self) -> FloatArray:
        """The mean seconds of a step in each counted block of the group (of its slowest rank)."""
        ranks = self.result.ranks
        if not self.groups or not ranks[0].block_steps:
            return np.empty(0)
        group = self.groups[0]
        if self.result.scale.independent:
            group = count_blocks(ranks, _wanted_half_width(self.result), rounds_left_out(self.result))
        blocks: FloatArray = group.seconds / ranks[0].block_steps
        return blocks

    @property
    def step_s(self) -> float | None:
        """The mean seconds of one step of the group."""
        blocks = self.step_blocks_s
        return sum(blocks.tolist()) / len(blocks) if len(blocks) else None

    def step_spread(self) -> dict[str, float | None]:
        """Return the columns of how step times vary between blocks: median, interpolated 95th percentile, and standard
        deviation over mean from two blocks on."""
        blocks, mean = self.step_blocks_s, self.step_s
        median, p95 = np.quantile(blocks, (0.5, 0.95)).tolist() if len(blocks) else (None, None)
        cv = float(np.std(blocks, ddof=1)) / mean if mean and len(blocks) > 1 else None
        return {"step_s_median": median, "step_s_p95": p95, "step_cv": cv}

    @property
    def steady(self) -> bool | None:
        """Return whether the blocks neither drift nor change their level after leftover warm-up; None: too few."""
        if not self.groups or any(group.unsteadiness is None for group in self.groups):
            return None
        return not any(group.unsteadiness for group in self.groups)

    @property
    def mfu(self) -> float | None:
        """The model FLOPs utilization: FLOP/s of training over the peak of all devices. None on CPUs, and where the
        FLOPs of the model or a peak are unknown.

        Operations that a strategy repeats, such as recomputed activations, do not count. Source: Chowdhery et al. 2022,
        "PaLM", appendix B.
        """
        rate, flops, peak = self.throughput, self.result.workload.flops_per_sample, peak_flops(self.result)
        return rate.value * flops / peak if rate is not None and flops and peak else None

    def list_flags(self) -> list[str]:
        """Return the flags of the record, and those that its figures show without those of other runs."""
        result, rate, work = self.result, self.throughput, self.result.workload
        flags, of_program = counting_flags(result), user_program.program_flags(result)
        if result.status == "ok":
            target, repeats = _wanted_half_width(result), result.spec.get("measure", {}).get("repeats") or 1
            if rate is None or not rate.has_limits:
                flags += ["no_interval"] if "samples_unknown" not in of_program else []
            # A training goes on to its end, and each of several repeats may be wider (RunSpec.repeat_settings).
            elif not result.quality.curve and isinstance(target, (int, float)):
                is_wide = rate.relative_half_width() > target * math.sqrt(repeats)
                flags += ["target_missed"] if is_wide else []
            flags += ["warmup_left"] if any(group.warmup_blocks for group in self.groups) else []
            flags += ["drifts"] if self.steady is False else []
        flags += of_program
        host_wait = step_breakdown.gpu_cells(result, self.step_s)["host_wait_share"]
        flags += ["host_limited"] if host_wait is not None and host_wait >= MIN_HOST_WAIT_SHARE else []
        flags += ["mfu_above_1"] if (self.mfu or 0.0) > 1 else []
        gpus = [gpu for machine in (result.machine, *(result.other_machines or [])) for gpu in machine.gpus]
        is_float32 = result.scale.device == "cuda" and work.precision_used == "float32"
        if is_float32 and any(has_fast_tensor_cores(gpu.name) for gpu in gpus):
            # Faster kernels shorten no step that waits for its host, by the profile or else by NVML.
            profiles = [rank.probes.profile for rank in result.ranks if rank.probes is not None]
            kernels_s = [each.kernel_s for each in profiles if each is not None and each.kernel_s is not None]
            shares = [seconds / self.step_s for seconds in kernels_s if self.step_s]
            shares = shares or [each.gpu_util_mean for each in result.monitor.devices if each.gpu_util_mean is not None]
            flags += ["no_tensor_cores"] if not shares or statistics.fmean(shares) >= MIN_BUSY_SHARE else []
        # One process reads samples of the user's Dataset.
        reads_slowly = rate is not None and work.read_samples_per_s is not None and work.read_samples_per_s < rate.value
        return flags + (["slow_reading"] if reads_slowly else [])


def token_cells(result: Result, rate: Estimate | None) -> dict[str, float | None]:
    """Return the columns of sequences and of a throughput in their tokens, null where samples are not sequences."""
    length, tokens = result.workload.tokens_per_sample, None
    if length is not None and rate is not None:
        tokens = length * rate.value
    return {
        "sequence_length": None if length is None or user_program.has_program(result) else round(length),
        "tokens_per_s": tokens,
        "tokens_per_s_per_device": None if tokens is None else tokens / result.scale.gpus,
    }


def _wanted_half_width(result: Result) -> Any:
    """Return the configured relative half-width of the interval; None where a spec has none."""
    return result.spec.get("measure", {}).get("target")


def rounds_left_out(result: Result) -> set[int]:
    """Return the rounds that do not count, since other programs took the cores in them; all count where fewer than
    MIN_ROUNDS were undisturbed."""
    disturbed = set(result.disturbed_rounds)
    rounds = set(result.ranks[0].block_rounds) if disturbed and result.ranks else set()
    return disturbed if len(rounds - disturbed) >= MIN_ROUNDS else set()


def counting_flags(result: Result) -> list[str]:
    """Return the flags of a record, without `busy_machine` if the rounds in which other programs took the cores are
    left out."""
    left_out = rounds_left_out(result)
    return [flag for flag in result.flags if not (left_out and flag == "busy_machine")]


def merge_rank_blocks(ranks: Sequence[RankRecord]) -> tuple[FloatArray, FloatArray]:
    """Return the seconds (of the slowest rank) and the samples (of all) of the blocks that each rank finished."""
    count = min((min(len(rank.block_s), len(rank.block_samples)) for rank in ranks), default=0)
    if not count:
        return np.empty(0), np.empty(0)
    seconds = np.array([rank.block_s[:count] for rank in ranks], np.float64)
    samples = np.array([rank.block_samples[:count] for rank in ranks], np.float64)
    return seconds.max(axis=0), samples.sum(axis=0)


def count_blocks(ranks: Sequence[RankRecord], target: Any, left_out: Collection[int] = ()) -> CountedBlocks:
    """Merge the blocks of a group without the rounds `left_out` and without pauses. Drop the first ones if they are
    still warm-up: the warm-up phase ended too soon, and these blocks move the mean by more than `target` (a share).

    A level that changes after the first quarter is not warm-up: its blocks stay, and count as a drift of the machine.
    """
    seconds, samples = merge_rank_blocks(ranks)
    lengths = {len(blocks) for rank in ranks for blocks in (rank.block_s, rank.block_samples, rank.block_rounds)}
    has_rounds = len(lengths) == 1 and all(rank.block_rounds == ranks[0].block_rounds for rank in ranks)
    rounds = np.array(ranks[0].block_rounds if has_rounds else [], np.int64)
    counts = user_program.mark_training(ranks, len(seconds))
    if left_out and len(rounds):
        counts &= ~np.isin(rounds, list(left_out))
    if not counts.all():
        seconds, samples, rounds = seconds[counts], samples[counts], rounds[counts] if len(rounds) else rounds
    if not isinstance(target, (int, float)):
        return CountedBlocks(seconds, samples, rounds)
    unsteadiness = find_unsteadiness(seconds, target)
    length = (find_warmup_length(seconds) or 0) if "warmup_left" in (unsteadiness or []) else 0
    if not 0 < length <= min(len(seconds) - MIN_BLOCKS, MAX_WARMUP_SHARE * len(seconds)):
        return CountedBlocks(seconds, samples, rounds, 0, unsteadiness)
    seconds, samples, rounds = seconds[length:], samples[length:], rounds[length:]
    return CountedBlocks(seconds, samples, rounds, length, find_unsteadiness(seconds, target))


def ratio_in_rounds(rates: Mapping[tuple[str, int], float], base: Mapping[tuple[str, int], float]) -> float | None:
    """Return the throughput of a run over that of another by their round_rates: the geometric mean of the ratios within
    rounds; None unless they shared two rounds of a cohort that count for both.

    So a change of the machine that lasts for a round cancels. Source: Box, Hunter and Hunter 2005, "Statistics for
    Experimenters", chapter 3 (paired comparisons in blocks).
    """
    logs = [math.log(rate / base[key]) for key, rate in rates.items() if key in base]
    return math.exp(math.fsum(logs) / len(logs)) if len(logs) > 1 else None


def make_round_rows(result: Result, folder: str) -> list[tuple[object, ...]]:
    """Return the values of ROUND_COLUMNS for each round of a run in `folder`, also of those that do not count."""
    scale, disturbed = result.scale, set(result.disturbed_rounds)
    counting_rates = Measurement(result).round_rates
    rows: list[tuple[object, ...]] = []
    for (cohort, number), rate in Measurement(result, counts_all=True).round_rates.items():
        first = result.ranks[0]
        slot = [at for at, other in enumerate(first.block_rounds) if other == number]
        step_s = sum(first.block_s[at] for at in slot) / (len(slot) * (first.block_steps or 1))
        rows.append((
            cohort, number, scale.repeat, result.run_id, folder, scale.strategy, scale.gpus, scale.global_batch,
            first.block_started_at_s[slot[0]], step_s, rate, number in disturbed, (cohort, number) in counting_rates,
        ))  # fmt: skip
    return rows


def peak_flops(result: Result) -> float | None:
    """Return the peak FLOP/s of all devices together, at the precision that was observed; None where one has none, as a
    part of a GPU (MIG). They are those that the monitor watched, or known if all GPUs of the machines are of one kind.
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


def superlinear_flags(efficiency: Estimate | None, device: str) -> list[str]:
    """Return the flag of an efficiency above 1, which says whether its interval is above 1 too, and whether it is of
    CPU workers: these share the processors that there are, so that it is an error of the measurement."""
    if efficiency is None or efficiency.value <= 1 or not math.isfinite(efficiency.low):
        return []
    if efficiency.low <= 1:
        return ["superlinear_within_noise"]
    return ["superlinear_on_cpu"] if device == "cpu" else ["superlinear"]
