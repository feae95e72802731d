"""Derived figures, computed on load from the raw ones: throughput, baselines, speedup, efficiency. Layer 1."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scalebench.configs import option_defaults
from scalebench.results import RankRecord, Result
from scalebench.stats import Interval, batch_means_interval, ratio_interval, scale, sum_interval
from scalebench.steady import FEWEST, unsteadiness, warmup_length

MOST_LEFT_OUT = 0.25  # of the measured blocks
Blocks = tuple[list[float], list[int]]  # seconds and samples of each block
PLACEMENT = ("device_ids", "bind", "environment")  # keys of the hardware


def group_blocks(ranks: list[RankRecord]) -> Blocks:
    """Blocks of a group in lockstep: the time of the slowest rank, the samples of all.

    Blocks that not every rank finished are left out.
    """
    by_rank = [zip(r.block_s, r.block_samples, strict=False) for r in ranks]
    blocks = [tuple(zip(*block, strict=True)) for block in zip(*by_rank, strict=False)]
    return [max(seconds) for seconds, _ in blocks], [sum(samples) for _, samples in blocks]


def steady_blocks(ranks: list[RankRecord], target: Any) -> Blocks:
    """group_blocks without the first ones that are still warm-up: a warm-up too long for the phase of that name to see
    its end, where `target` (a share) is less than what it moves the mean by. A level that changes later than in the
    first quarter is the machine's rather than a warm-up's, and stays: a drift."""
    seconds, samples = group_blocks(ranks)
    left = _still_warming(seconds, target)
    return seconds[left:], samples[left:]


def _still_warming(seconds: list[float], target: Any) -> int:
    if not isinstance(target, (int, float)) or "warmup_left" not in (unsteadiness(seconds, target) or []):
        return 0
    found = warmup_length(seconds) or 0
    return found if len(seconds) - found >= FEWEST and found <= MOST_LEFT_OUT * len(seconds) else 0


def target_of(result: Result) -> Any:
    """The relative half-width of the interval that was asked for; None where an old or foreign spec has none."""
    return result.spec.get("measure", {}).get("target")


def throughput(result: Result) -> tuple[float | None, Interval | None]:
    """(samples/s over all devices, its 95 % interval over blocks); None where not measured.

    Too few blocks for an interval still give the figure. Replicas out of lockstep run to a common deadline:
    their throughputs add up, each without its last block, which reaches past it.
    """
    if result.status != "ok" or not result.ranks:
        return None, None
    target = target_of(result)
    if result.scale.lockstep:
        return _of(steady_blocks(result.ranks, target))
    series = [steady_blocks([r], target) for r in result.ranks]
    values, intervals = zip(*(_of((seconds[:-1], samples[:-1])) for seconds, samples in series), strict=True)
    if any(value is None for value in values):
        return None, None
    known = [interval for interval in intervals if interval is not None]
    return sum(values), sum_interval(known) if len(known) == len(values) else None


def _of(blocks: Blocks) -> tuple[float | None, Interval | None]:
    seconds, samples = blocks
    if not seconds or min(seconds) < 0 or sum(seconds) == 0 or min(samples) < 1:
        return None, None
    return sum(samples) / sum(seconds), batch_means_interval(seconds, samples)


def step_s(result: Result) -> float | None:
    """Mean seconds of one update of the group (of the slowest rank)."""
    if result.status != "ok" or not result.ranks or not result.ranks[0].block_steps:
        return None
    seconds, _ = steady_blocks(result.ranks, target_of(result))
    return sum(seconds) / (len(seconds) * result.ranks[0].block_steps) if seconds else None


def comparison_key(result: Result, strategy: bool) -> str:
    """What two rows must share to be compared by speedup.

    The workload, the machine and how it is trained; not the number of devices, nor how it is measured. With `strategy`
    also the strategy and its options.
    """
    tree = copy.deepcopy(result.spec)
    for key in ("gpus", "repeat", "resume", "baseline", "dry_run", "debug", "measure"):
        tree.pop(key, None)
    tree.get("dataset", {}).pop("cache", None)
    for key in PLACEMENT:  # of one machine; which of several rows to take is up to _nearest
        tree.get("hardware", {}).pop(key, None)
    chosen = tree.pop("strategy", {})
    kept: list[Any] = [tree, result.scale.device, sorted({gpu.name or "" for gpu in result.machine.gpus})]
    if result.scale.device == "cpu":
        kept.append(result.machine.cpu_model)
    if strategy:
        kept.append([chosen.get("name"), chosen.get("options")])
    return json.dumps(kept, sort_keys=True)


@dataclass
class Baselines:
    """One-device rows by what they can be compared with."""

    own: dict[str, list[Result]]
    bare: dict[tuple[str, str], list[Result]]

    @classmethod
    def among(cls, results: Iterable[Result]) -> Baselines:
        """All good one-device rows."""
        found = cls({}, {})
        for result in results:
            if result.status == "ok" and result.scale.gpus == 1:
                found.own.setdefault(comparison_key(result, True), []).append(result)
                key = (result.scale.strategy, comparison_key(result, False))
                if result.scale.framework == "none" or _as_it_comes(result):
                    found.bare.setdefault(key, []).append(result)
        return found

    def self_of(self, result: Result) -> Result | None:
        """The same strategy on one device."""
        return _nearest(result, self.own.get(comparison_key(result, True), []))

    def bare_of(self, result: Result) -> Result | None:
        """One device, no wrapper: the strategy's own `baseline` with the options that it comes with."""
        name = result.scale.baseline_bare
        if name == result.scale.strategy and result.scale.framework == "none":  # whose options are the workload
            return _nearest(result, self.own.get(comparison_key(result, True), []), bare=True)
        found = _nearest(result, self.bare.get((name, comparison_key(result, False)), []), bare=True) if name else None
        return self.self_of(result) if found is None and name == result.scale.strategy else found


def _as_it_comes(result: Result) -> bool:
    """Whether all options of the strategy have their defaults."""
    chosen = result.spec.get("strategy", {})
    defaults = option_defaults(result.scale.strategy)
    return all(value == defaults.get(key, value) for key, value in (chosen.get("options") or {}).items())


def _nearest(result: Result, candidates: list[Result], bare: bool = False) -> Result | None:
    """The row itself if it is one of them; else of the same repeat if there is one, and closest in time.

    Machines drift: a baseline of the same sweep says more than the latest of all. One of the same placement goes before
    all others, and then one of the usual placement. A bare row on one device has the usual one first, not itself: that
    is how devices are compared, each alone.
    """
    alone = bare and result.scale.gpus == 1 and result.scale.baseline_bare == result.scale.strategy
    mine = _placement(result)

    def distance(candidate: Result) -> tuple[list[bool], bool, bool, int, bool, bool, float]:
        theirs = _placement(candidate)
        unlike = [] if alone else [a != b for a, b in zip(theirs, mine, strict=True)]
        environment, bind, first = theirs
        apart_s = abs((started(candidate) - started(result)).total_seconds())
        itself, same_repeat = candidate.run_id == result.run_id, candidate.scale.repeat == result.scale.repeat
        return unlike, environment != {}, bind != "numa", first, not itself, not same_repeat, apart_s

    return min(candidates, key=distance, default=None)


def _placement(result: Result) -> tuple[dict[str, str], str, int]:
    """Variables, binding and first device of a row; those of older records, which have none, are the usual ones."""
    hardware = result.spec.get("hardware", {})
    return hardware.get("environment") or {}, hardware.get("bind") or "numa", (hardware.get("device_ids") or [0])[0]


def started(result: Result) -> datetime:
    when = datetime.fromisoformat(result.started_at)
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def speedup(result: Result, baseline: Result | None) -> tuple[float | None, Interval | None]:
    """Throughput over the baseline's, with the interval of the ratio. 1 without an interval against itself."""
    if baseline is None:
        return None, None
    if baseline.run_id == result.run_id:
        return 1.0, None
    mine, mine_interval = throughput(result)
    theirs, their_interval = throughput(baseline)
    if mine is None or theirs is None:
        return None, None
    known = mine_interval is not None and their_interval is not None
    return mine / theirs, ratio_interval(mine_interval, their_interval) if known else None  # type: ignore[arg-type]


def overhead(own: Result | None, bare: Result | None) -> tuple[float | None, Interval | None]:
    """The share of the bare baseline's throughput that the strategy loses on one device: 1 - own / bare.

    With the interval of that ratio turned round; negative where the strategy is faster than its baseline. None for the
    bare strategy itself, whose two baselines are one run.
    """
    if own is None or bare is None or comparison_key(own, True) == comparison_key(bare, True):
        return None, None
    ratio, interval = speedup(own, bare)
    return lost(ratio, interval)


def lost(ratio: float | None, interval: Interval | None) -> tuple[float | None, Interval | None]:
    """What a ratio leaves of 1, with its interval turned round."""
    if ratio is None:
        return None, None
    return 1 - ratio, None if interval is None else Interval(1 - interval.value, 1 - interval.high, 1 - interval.low)


def per_device(interval: Interval | None, gpus: int) -> Interval | None:
    """Speedup -> efficiency, against a baseline of one device."""
    return None if interval is None else scale(interval, 1 / gpus)


def unsteady(result: Result, target: Any) -> list[str] | None:
    """`drifts`, if that or a change of level is seen in the blocks (steady.unsteadiness) once first ones that were
    still warm-up are left out; None where it cannot be told.

    Of replicas out of lockstep each has a series of its own.
    """
    if result.status != "ok" or not isinstance(target, (int, float)):
        return None
    groups = [result.ranks] if result.scale.lockstep else [[rank] for rank in result.ranks]
    told = [unsteadiness(steady_blocks(ranks, target)[0], target) for ranks in groups if ranks]
    if not told or any(words is None for words in told):
        return None
    return ["drifts"] if any(told) else []


def flags(result: Result, interval: Interval | None, efficiency: Interval | None, target: Any) -> list[str]:
    """What a reader of the row must know: its own flags, a wide interval, a series that is not steady, more than
    linear within noise."""
    found = list(result.flags)
    if result.status == "ok":
        if interval is None or not math.isfinite(interval.high):
            found.append("no_interval")
        elif isinstance(target, (int, float)) and interval.relative_half_width() > target:
            found.append("target_missed")
        found += _left_out(result, target) + (unsteady(result, target) or [])
        found += superlinear(efficiency)
    return found


def _left_out(result: Result, target: Any) -> list[str]:
    """The flag of measured blocks that do not count."""
    groups = [result.ranks] if result.scale.lockstep else [[rank] for rank in result.ranks]
    return ["warmup_left"] if any(_still_warming(group_blocks(ranks)[0], target) for ranks in groups) else []


def superlinear(efficiency: Interval | None) -> list[str]:
    """The flag of an efficiency above 1: whether its interval says so too."""
    if efficiency is None or efficiency.value <= 1:
        return []
    return ["superlinear_within_noise" if efficiency.low <= 1 else "superlinear"]
