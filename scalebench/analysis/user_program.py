"""Pauses, waits for samples, the time of the hooks and the samples of runs of a user's own program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scalebench.analysis.identity import RunIdentity
from scalebench.core.result import RankRecord, Result

# With fewer blocks without a pause, and fewer than half, all blocks count: epochs are shorter than blocks.
MIN_TRAINED_BLOCKS = 8
MAX_HOOKS_SHARE = 0.01
MAX_BATCH_SPREAD = 0.1  # of the samples of a step between the middle 80 % of blocks, over their median
MAX_BATCH_DIFFERENCE = 0.01  # of the samples of a step, between numbers of devices
PROGRAM = "script"  # the strategy of such runs


def has_program(result: Result) -> bool:
    """Return whether a program of the user's trained."""
    return (result.spec.get("script") or {}).get("path") is not None


def mark_training(ranks: Sequence[RankRecord], blocks: int) -> npt.NDArray[np.bool_]:
    """Return for each block of a group whether no rank paused in it (evaluation, saving, the end of an epoch), for
    which the others wait; all are true where too few would be left, of blocks most of which have a pause."""
    trained = np.ones(blocks, np.bool_)
    for rank in ranks:
        paused = [bool(pause) for pause in rank.block_pauses[:blocks]]
        trained[: len(paused)] &= ~np.array(paused, np.bool_)
    count = np.count_nonzero(trained)
    return trained if count >= MIN_TRAINED_BLOCKS or 2 * count > blocks else np.ones(blocks, np.bool_)


def pause_share(result: Result) -> float | None:
    """Return the share of the measured time that is not training: what blocks with a pause take longer than others.
    None without a program of the user's, and where all blocks count."""
    ranks = result.ranks
    blocks = min((len(rank.block_s) for rank in ranks), default=0)
    if not blocks or not has_program(result) or result.status != "ok":
        return None
    trained = mark_training(ranks, blocks)
    seconds = np.maximum.reduce([np.array(rank.block_s[:blocks]) for rank in ranks])
    if trained.all():
        return None if any(any(rank.block_pauses) for rank in ranks) else 0.0
    usual_s = float(np.mean(seconds[trained]))
    return float(np.maximum(seconds[~trained] - usual_s, 0.0).sum() / seconds.sum())


def name_pauses(result: Result) -> list[str]:
    """Return the kinds of pauses in the measured blocks, each once."""
    return sorted({kind for rank in result.ranks for pause in rank.block_pauses for kind in pause.split()})


def data_wait_share(result: Result) -> float | None:
    """Return the share of training in which the ranks waited for samples of a user's loader, on average; None where
    it was not seen, as in Keras' fit."""
    shares = []
    for rank in result.ranks:
        trained = mark_training(result.ranks, len(rank.block_s))
        total_s = float(np.array(rank.block_s)[trained].sum()) if len(trained) else 0.0
        draws_nothing = rank.script is not None and not rank.script.draws
        if draws_nothing or len(rank.block_data_s) != len(trained) or not total_s:
            return None
        shares.append(float(np.array(rank.block_data_s)[trained].sum()) / total_s)
    return math.fsum(shares) / len(shares) if shares else None


def hooks_share(result: Result) -> float | None:
    """Return the share of a step that scalebench's own hooks take on the rank where they take most; None without."""
    shares = [
        rank.script.hooks_s * len(rank.block_s) * rank.block_steps / sum(rank.block_s)
        for rank in result.ranks
        if rank.script is not None and rank.script.hooks_s is not None and rank.block_steps and sum(rank.block_s)
    ]
    return max(shares, default=None)


def program_flags(result: Result) -> list[str]:
    """Return the flags of a run of a user's program that its record shows."""
    if not has_program(result) or result.status != "ok":
        return []
    flags = ["hooks_cost"] if (hooks_share(result) or 0.0) > MAX_HOOKS_SHARE else []
    flags += ["pauses_count"] if pause_share(result) is None and name_pauses(result) else []
    if result.scale.global_batch is None:
        return [*flags, "samples_unknown"]
    blocks = [sum(samples) for samples in zip(*(rank.block_samples for rank in result.ranks), strict=False)]
    if not blocks:
        return flags
    low, median, high = np.quantile(np.array(blocks)[mark_training(result.ranks, len(blocks))], (0.1, 0.5, 0.9))
    return [*flags, "batches_vary"] if high - low > MAX_BATCH_SPREAD * median else flags


def scaling_flags(run: RunIdentity, baseline: RunIdentity | None) -> list[str]:
    """Return the flag of a program whose samples do not scale as its run declares: those of a device are kept in weak
    scaling, those of all in strong scaling."""
    if baseline is None or baseline.run_id == run.run_id or run.scale.strategy != PROGRAM:
        return []
    own, base = run.scale, baseline.scale
    name = "global_batch" if own.scaling == "strong" else "batch_per_device"
    samples, expected = getattr(own, name), getattr(base, name)
    if samples is None or expected is None or abs(samples - expected) <= MAX_BATCH_DIFFERENCE * expected:
        return []
    return ["other_scaling"]
