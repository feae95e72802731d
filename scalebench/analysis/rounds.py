"""Runs that took turns: their throughput in each round, and ratios in which the changes of the machine cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scalebench.core.result import RankRecord, Result

if TYPE_CHECKING:
    from scalebench.analysis.run_summary import Run

ROUND_COLUMNS = (
    "cohort", "round", "repeat", "run_id", "path", "strategy", "gpus", "global_batch", "started_at_s", "step_s",
    "throughput_samples_per_s", "disturbed",
)  # fmt: skip
MIN_ROUNDS = 8


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


def round_rates(result: Result) -> dict[int, float]:
    """Return the throughput in each round that counts, in samples/s over all devices; empty without turns."""
    left_out = rounds_left_out(result)
    return {number: rate for number, rate in _all_rates(result).items() if number not in left_out}


def _all_rates(result: Result) -> dict[int, float]:
    """Return the throughput in each round, also in those in which other programs took the cores.

    The time of a block of a synchronous group is that of its slowest rank; independent replicas add up.
    """
    if result.status != "ok" or not result.ranks or not result.ranks[0].block_rounds:
        return {}
    if not result.scale.independent:
        return _rates(result.ranks)
    of_ranks = [_rates([rank]) for rank in result.ranks]
    shared = set.intersection(*(set(rates) for rates in of_ranks))
    return {number: sum(rates[number] for rates in of_ranks) for number in sorted(shared)}


def _rates(ranks: Sequence[RankRecord]) -> dict[int, float]:
    rounds = ranks[0].block_rounds
    lengths = {len(blocks) for rank in ranks for blocks in (rank.block_s, rank.block_samples)}
    if any(rank.block_rounds != rounds for rank in ranks) or lengths != {len(rounds)}:
        return {}
    slowest_s = np.array([rank.block_s for rank in ranks], np.float64).max(axis=0)
    samples = np.array([rank.block_samples for rank in ranks], np.float64).sum(axis=0)
    begins = np.flatnonzero(np.diff(rounds, prepend=rounds[0] - 1))
    sums = zip(begins.tolist(), *(np.add.reduceat(each, begins).tolist() for each in (slowest_s, samples)), strict=True)
    return {rounds[begin]: count / seconds for begin, seconds, count in sums if seconds > 0 and count > 0}


def ratio_in_rounds(run: Run, base: Run) -> float | None:
    """Return the throughput of a run over that of another of its cohort, the geometric mean of the ratios within
    rounds; None unless they shared two rounds.

    So a change of the machine that lasts for a round cancels. Source: Box, Hunter and Hunter 2005, "Statistics for
    Experimenters", chapter 3 (paired comparisons in blocks).
    """
    if run.cohort is None or run.cohort != base.cohort:
        return None
    of_run, of_base = (round_rates(each) if isinstance(each, Result) else each.round_rates for each in (run, base))
    shared = [number for number in of_run if number in of_base]
    if len(shared) < 2:
        return None
    logs = [math.log(of_run[number] / of_base[number]) for number in shared]
    return math.exp(math.fsum(logs) / len(logs))


def make_round_rows(result: Result, folder: str) -> list[tuple[object, ...]]:
    """Return the values of ROUND_COLUMNS for each round of a run in `folder`."""
    rates, scale, disturbed = _all_rates(result), result.scale, set(result.disturbed_rounds)
    if not rates:
        return []
    first = result.ranks[0]
    slots: dict[int, list[int]] = {}
    for at, number in enumerate(first.block_rounds):
        slots.setdefault(number, []).append(at)
    return [
        (
            result.cohort, number, scale.repeat, result.run_id, folder, scale.strategy, scale.gpus, scale.global_batch,
            first.block_started_at_s[slots[number][0]],
            sum(first.block_s[at] for at in slots[number]) / (len(slots[number]) * (first.block_steps or 1)),
            rate, number in disturbed,
        )
        for number, rate in rates.items()
    ]  # fmt: skip
