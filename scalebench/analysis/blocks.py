"""The measured blocks of a run: which of them count, the throughput in each round of runs that took turns, and ratios
in which the changes of the machine cancel.

Throughput, step times and ratios all rest on the same counted blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scalebench.analysis import user_program
from scalebench.core.result import RankRecord, Result
from scalebench.core.stats.estimates import FloatArray
from scalebench.core.stats.steady_state import MIN_BLOCKS, find_unsteadiness, find_warmup_length

if TYPE_CHECKING:
    from scalebench.analysis.run_summary import Run

ROUND_COLUMNS = (
    "cohort", "round", "repeat", "run_id", "path", "strategy", "gpus", "global_batch", "started_at_s", "step_s",
    "throughput_samples_per_s", "disturbed", "counts",
)  # fmt: skip
MIN_ROUNDS = 8
MAX_WARMUP_SHARE = 0.25  # of the measured blocks
Blocks = tuple[FloatArray, FloatArray]  # seconds and samples of each block
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CountedBlocks:
    """The measured blocks of a group of ranks without disturbed rounds and without leftover warm-up, and signs of
    unsteadiness (None: too few blocks)."""

    seconds: FloatArray
    samples: FloatArray
    rounds: IntArray  # of the cohort, for each block; empty without turns
    warmup_blocks: int  # left out at the beginning
    unsteadiness: list[str] | None

    def without_last(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return seconds, samples and rounds without the last block, unless it is the only one: that of a replica that
        is not synchronous reaches past the common deadline."""
        end = max(1, len(self.seconds) - 1)
        return self.seconds[:end], self.samples[:end], self.rounds[:end]


def wanted_half_width(result: Result) -> Any:
    """Return the configured relative half-width of the interval; None where an old or foreign spec has none."""
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


def merge_rank_blocks(ranks: Sequence[RankRecord]) -> Blocks:
    """Return the blocks of a synchronous group: the time of the slowest rank, the samples of all.

    Blocks that not every rank finished are left out.
    """
    count = min((min(len(r.block_s), len(r.block_samples)) for r in ranks), default=0)
    seconds, samples = ([getattr(rank, name)[:count] for rank in ranks] for name in ("block_s", "block_samples"))
    if not count:
        return np.empty(0), np.empty(0)
    return np.maximum.reduce(np.array(seconds, np.float64)), np.add.reduce(np.array(samples, np.float64))


def _merge_rounds(ranks: Sequence[RankRecord]) -> IntArray:
    """Return the round of each block; empty without turns, and where rounds and blocks differ in number."""
    rounds = ranks[0].block_rounds if ranks else []
    lengths = {len(blocks) for rank in ranks for blocks in (rank.block_s, rank.block_samples)}
    agree = lengths == {len(rounds)} and all(rank.block_rounds == rounds for rank in ranks)
    return np.array(rounds if agree else [], np.int64)


def count_blocks(ranks: Sequence[RankRecord], target: Any, left_out: Collection[int] = ()) -> CountedBlocks:
    """Merge the blocks of a group without the rounds `left_out` and without pauses. Drop the first ones if they are
    still warm-up: the warm-up phase ended too soon, and these blocks move the mean by more than `target` (a share).

    A level that changes after the first quarter is no warm-up: its blocks stay, and count as a drift of the machine.
    """
    (seconds, samples), rounds = merge_rank_blocks(ranks), _merge_rounds(ranks)
    counts = user_program.mark_training(ranks, len(seconds))
    if left_out and len(rounds):
        counts &= ~np.isin(rounds, list(left_out))
    if not counts.all():
        seconds, samples, rounds = seconds[counts], samples[counts], rounds[counts] if len(rounds) else rounds
    if not isinstance(target, (int, float)):
        return CountedBlocks(seconds, samples, rounds, 0, None)
    unsteadiness, warmup_blocks = find_unsteadiness(seconds, target), 0
    if "warmup_left" in (unsteadiness or []):
        length = find_warmup_length(seconds) or 0
        can_be_cut = len(seconds) - length >= MIN_BLOCKS and length <= MAX_WARMUP_SHARE * len(seconds)
        warmup_blocks = length if can_be_cut else 0
    if warmup_blocks:
        seconds, samples, rounds = seconds[warmup_blocks:], samples[warmup_blocks:], rounds[warmup_blocks:]
        unsteadiness = find_unsteadiness(seconds, target)
    return CountedBlocks(seconds, samples, rounds, warmup_blocks, unsteadiness)


def count_all_blocks(result: Result, target: Any) -> list[CountedBlocks]:
    """Count the blocks of a synchronous group, or of each rank by itself; none of a run that is not ok."""
    if result.status != "ok" or not result.ranks:
        return []
    return [count_blocks(ranks, target, rounds_left_out(result)) for ranks in split_into_groups(result)]


def split_into_groups(result: Result) -> list[list[RankRecord]]:
    """Return the ranks that run in step: all, or each by itself."""
    return [[rank] for rank in result.ranks] if result.scale.independent else [result.ranks]


def round_rates(groups: Sequence[CountedBlocks], independent: bool) -> dict[int, float]:
    """Return the throughput in each round by the blocks that count, in samples/s over all devices; empty without turns.

    The time of a block of a synchronous group is that of its slowest rank; independent replicas add up.
    """
    of_groups = [
        _rates(*(group.without_last() if independent else (group.seconds, group.samples, group.rounds)))
        for group in groups
    ]
    shared = set.intersection(*map(set, of_groups)) if of_groups else set()
    return {number: math.fsum(rates[number] for rates in of_groups) for number in sorted(shared)}


def _rates(seconds: FloatArray, samples: FloatArray, rounds: IntArray) -> dict[int, float]:
    if not len(rounds):
        return {}
    begins = np.flatnonzero(np.diff(rounds, prepend=rounds[0] - 1))
    sums = zip(rounds[begins].tolist(), *(np.add.reduceat(each, begins).tolist() for each in (seconds, samples)),
               strict=True)  # fmt: skip
    return {number: count / total_s for number, total_s, count in sums if total_s > 0 and count > 0}


def ratio_in_rounds(run: Run, base: Run) -> float | None:
    """Return the throughput of a run over that of another of its cohort, the geometric mean of the ratios within
    rounds; None unless they shared two rounds that count for both.

    So a change of the machine that lasts for a round cancels. Source: Box, Hunter and Hunter 2005, "Statistics for
    Experimenters", chapter 3 (paired comparisons in blocks).
    """
    if run.cohort is None or run.cohort != base.cohort:
        return None
    of_run, of_base = (
        round_rates(count_all_blocks(each, wanted_half_width(each)), each.scale.independent)
        if isinstance(each, Result)
        else each.round_rates
        for each in (run, base)
    )
    shared = [number for number in of_run if number in of_base]
    if len(shared) < 2:
        return None
    logs = [math.log(of_run[number] / of_base[number]) for number in shared]
    return math.exp(math.fsum(logs) / len(logs))


def make_round_rows(result: Result, folder: str) -> list[tuple[object, ...]]:
    """Return the values of ROUND_COLUMNS for each round of a run in `folder`, also of those that do not count."""
    scale, disturbed = result.scale, set(result.disturbed_rounds)
    if result.status != "ok" or not result.ranks:
        return []
    rates = round_rates([count_blocks(ranks, None) for ranks in split_into_groups(result)], scale.independent)
    counted = round_rates(count_all_blocks(result, wanted_half_width(result)), scale.independent)
    first = result.ranks[0]
    slots: dict[int, list[int]] = {}
    for at, number in enumerate(first.block_rounds):
        slots.setdefault(number, []).append(at)
    return [
        (
            result.cohort, number, scale.repeat, result.run_id, folder, scale.strategy, scale.gpus, scale.global_batch,
            first.block_started_at_s[slots[number][0]],
            sum(first.block_s[at] for at in slots[number]) / (len(slots[number]) * (first.block_steps or 1)),
            rate, number in disturbed, number in counted,
        )
        for number, rate in rates.items()
    ]  # fmt: skip
