"""Derived figures, computed on load from the raw ones: throughput, speedup, efficiency, what to know of them.

Layer 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.baselines import Baselines as Baselines  # found here too
from scalebench.analysis.baselines import comparison_key as comparison_key
from scalebench.analysis.baselines import started as started
from scalebench.analysis.run_summary import Figures, Run
from scalebench.core.result import RankRecord, Result
from scalebench.core.stats.estimates import Interval, batch_means_interval, ratio_interval, scale, sum_interval
from scalebench.core.stats.steady_state import FEWEST, unsteadiness, warmup_length

MOST_LEFT_OUT = 0.25  # of the measured blocks
Blocks = tuple[list[float], list[int]]  # seconds and samples of each block
Figure = tuple[float | None, Interval | None]


@dataclass(frozen=True)
class Level:
    """The blocks of a group that count, and what speaks against their being steady; None where it cannot be told."""

    seconds: list[float]
    samples: list[int]
    left_out: int
    unsteady: list[str] | None


@dataclass(frozen=True)
class Measured:
    """What is made of the measured blocks of one run, which are looked at once for all of it."""

    throughput: Figure
    step_s: float | None
    steady: bool | None
    flags: list[str]


def group_blocks(ranks: Sequence[RankRecord]) -> Blocks:
    """Blocks of a group in lockstep: the time of the slowest rank, the samples of all.

    Blocks that not every rank finished are left out.
    """
    count = min((min(len(r.block_s), len(r.block_samples)) for r in ranks), default=0)
    if len(ranks) == 1:
        return ranks[0].block_s[:count], ranks[0].block_samples[:count]
    seconds = list(map(max, zip(*(r.block_s[:count] for r in ranks), strict=True)))
    return seconds, list(map(sum, zip(*(r.block_samples[:count] for r in ranks), strict=True)))


def steady_blocks(ranks: Sequence[RankRecord], target: Any) -> Blocks:
    """group_blocks without the first ones that are still warm-up: a warm-up too long for the phase of that name to see
    its end, where `target` (a share) is less than what it moves the mean by. A level that changes later than in the
    first quarter is the machine's rather than a warm-up's, and stays: a drift."""
    level = _level(ranks, target)
    return level.seconds, level.samples


def _level(ranks: Sequence[RankRecord], target: Any) -> Level:
    seconds, samples = group_blocks(ranks)
    if not isinstance(target, (int, float)):
        return Level(seconds, samples, 0, None)
    words, left = unsteadiness(seconds, target), 0
    if "warmup_left" in (words or []):
        found = warmup_length(seconds) or 0
        left = found if len(seconds) - found >= FEWEST and found <= MOST_LEFT_OUT * len(seconds) else 0
    if left:
        seconds, samples = seconds[left:], samples[left:]
        words = unsteadiness(seconds, target)
    return Level(seconds, samples, left, words)


def _levels(result: Result, target: Any) -> list[Level]:
    """Of the group in lockstep, or of each rank by itself; none of a run that is not ok."""
    if result.status != "ok" or not result.ranks:
        return []
    groups = [result.ranks] if result.scale.lockstep else [[rank] for rank in result.ranks]
    return [_level(ranks, target) for ranks in groups]


def target_of(result: Result) -> Any:
    """The relative half-width of the interval that was asked for; None where an old or foreign spec has none."""
    return result.spec.get("measure", {}).get("target")


def measured(result: Result) -> Measured:
    """throughput, step_s, unsteady and flags of a run, but for flags that compare it with others."""
    target = target_of(result)
    levels = _levels(result, target)
    figure = _throughput(result, levels)
    against = _unsteady(levels)
    steady = None if against is None else not against
    return Measured(figure, _step_s(result, levels), steady, _flags(result, figure[1], target, levels))


def throughput(run: Run) -> Figure:
    """(samples/s over all devices, its 95 % interval over blocks); None where not measured.

    Too few blocks for an interval still give the figure. Replicas out of lockstep run to a common deadline:
    their throughputs add up, each without its last block, which reaches past it.
    """
    return run.throughput if isinstance(run, Figures) else _throughput(run, _levels(run, target_of(run)))


def _throughput(result: Result, levels: Sequence[Level]) -> Figure:
    if not levels:
        return None, None
    if result.scale.lockstep:
        return _of(levels[0].seconds, levels[0].samples)
    values, intervals = zip(*(_of(level.seconds[:-1], level.samples[:-1]) for level in levels), strict=True)
    if any(value is None for value in values):
        return None, None
    known = [interval for interval in intervals if interval is not None]
    return sum(values), sum_interval(known) if len(known) == len(values) else None


def _of(seconds: list[float], samples: list[int]) -> Figure:
    if not seconds or min(seconds) < 0 or sum(seconds) == 0 or min(samples) < 1:
        return None, None
    return sum(samples) / sum(seconds), batch_means_interval(seconds, samples)


def step_s(result: Result) -> float | None:
    """Mean seconds of one update of the group (of the slowest rank)."""
    return _step_s(result, _levels(result, target_of(result)))


def _step_s(result: Result, levels: Sequence[Level]) -> float | None:
    if not levels or not result.ranks[0].block_steps:
        return None
    group = levels[0] if result.scale.lockstep else _level(result.ranks, target_of(result))
    return sum(group.seconds) / (len(group.seconds) * result.ranks[0].block_steps) if group.seconds else None


def speedup(run: Run, baseline: Run | None) -> Figure:
    """Throughput over the baseline's, with the interval of the ratio. 1 without an interval against itself."""
    if baseline is None:
        return None, None
    if baseline.run_id == run.run_id:
        return 1.0, None
    mine, mine_interval = throughput(run)
    theirs, their_interval = throughput(baseline)
    if mine is None or theirs is None:
        return None, None
    known = mine_interval is not None and their_interval is not None
    return mine / theirs, ratio_interval(mine_interval, their_interval) if known else None  # type: ignore[arg-type]


def overhead(own: Run | None, bare: Run | None) -> Figure:
    """The share of the bare baseline's throughput that the strategy loses on one device: 1 - own / bare.

    With the interval of that ratio turned round; negative where the strategy is faster than its baseline. None for the
    bare strategy itself, whose two baselines are one run.
    """
    if own is None or bare is None or comparison_key(own, True) == comparison_key(bare, True):
        return None, None
    ratio, interval = speedup(own, bare)
    return lost(ratio, interval)


def lost(ratio: float | None, interval: Interval | None) -> Figure:
    """What a ratio leaves of 1, with its interval turned round."""
    if ratio is None:
        return None, None
    return 1 - ratio, None if interval is None else Interval(1 - interval.value, 1 - interval.high, 1 - interval.low)


def per_device(interval: Interval | None, gpus: float) -> Interval | None:
    """Speedup -> efficiency, against a baseline of one device."""
    return None if interval is None else scale(interval, 1 / gpus)


def unsteady(result: Result, target: Any) -> list[str] | None:
    """`drifts`, if that or a change of level is seen in the blocks (steady.unsteadiness) once first ones that were
    still warm-up are left out; None where it cannot be told.

    Of replicas out of lockstep each has a series of its own.
    """
    return _unsteady(_levels(result, target))


def _unsteady(levels: Sequence[Level]) -> list[str] | None:
    if not levels or any(level.unsteady is None for level in levels):
        return None
    return ["drifts"] if any(level.unsteady for level in levels) else []


def flags(result: Result, interval: Interval | None, efficiency: Interval | None, target: Any) -> list[str]:
    """What a reader of the row must know: its own flags, a wide interval, a series that is not steady, more than
    linear within noise."""
    found = _flags(result, interval, target, _levels(result, target))
    return found + superlinear(efficiency) if result.status == "ok" else found


def _flags(result: Result, interval: Interval | None, target: Any, levels: Sequence[Level]) -> list[str]:
    found = list(result.flags)
    if result.status == "ok":
        if interval is None or not math.isfinite(interval.high):
            found.append("no_interval")
        elif result.quality.curve:  # it went on to the end of its training, however sure its throughput was
            pass
        elif isinstance(target, (int, float)) and interval.relative_half_width() > target:
            found.append("target_missed")
        found += ["warmup_left"] if any(level.left_out for level in levels) else []
        found += _unsteady(levels) or []
    return found


def superlinear(efficiency: Interval | None) -> list[str]:
    """The flag of an efficiency above 1: whether its interval says so too."""
    if efficiency is None or efficiency.value <= 1:
        return []
    return ["superlinear_within_noise" if efficiency.low <= 1 else "superlinear"]
