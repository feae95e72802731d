"""The losses of a run over its steps, of all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scalebench.core.result import RankRecord, Result


@dataclass(frozen=True)
class BlockEnd:
    """The end of a block of steps: the totals of the run up to it, and the mean loss over the block."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0  # of blocks: what lies between them is not training
    loss: float | None = None  # None: unknown
    is_measured: bool = False  # after warm-up


def compute_losses(result: Result) -> list[BlockEnd]:
    """Combine the losses of all ranks, warm-up included.

    A block takes as long as on the slowest rank, and its loss is the mean weighted by samples. Blocks that not every
    rank finished are left out. The seconds of a training to a stop exclude its first step, which compiles, like those
    of its curve.

    Evaluation cuts blocks short: what is left of a block before a point of the curve ends there, without a loss.
    """
    ends, curve, ranks = [BlockEnd()], list(result.quality.curve), result.ranks

    def pass_points(steps: float) -> None:
        """Advance to the point after which a block of `steps` fits before the next one."""
        while curve and curve[0].step < ends[-1].steps + steps:
            point = curve.pop(0)
            if point.step == ends[-1].steps:
                ends[-1] = replace(ends[-1], samples=point.samples)  # the last batch of an epoch may be smaller
            else:
                ends.append(BlockEnd(point.step, point.samples, max(point.train_s, ends[-1].seconds)))

    def add_block(steps: int, samples: int, seconds: float, loss: float | None, is_measured: bool) -> None:
        pass_points(steps)
        last = ends[-1]
        ends.append(BlockEnd(last.steps + steps, last.samples + samples, last.seconds + seconds, loss, is_measured))

    if not ranks:
        return []
    # The record has no sample counts of warm-up blocks: every rank had its share of the batch, as later on.
    shares = [rank.block_samples[0] if rank.block_samples else 1 for rank in ranks]
    steps = ranks[0].warmup_block_steps or 0
    for seconds, losses in _iterate_blocks(ranks, "warmup_block_s", "warmup_losses") if steps else ():
        compiles = bool(result.quality.curve) and len(ends) == 1
        samples = steps * result.scale.samples_per_step
        add_block(steps, samples, 0.0 if compiles else seconds, _compute_mean(losses, shares), False)
    steps = ranks[0].block_steps or 0
    samples_of = zip(*(rank.block_samples for rank in ranks), strict=False)
    for (seconds, losses), of_ranks in zip(_iterate_blocks(ranks, "block_s", "block_losses"), samples_of, strict=False):
        add_block(steps, sum(of_ranks), seconds, _compute_mean(losses, of_ranks), True)
    pass_points(math.inf)
    return ends[1:]


def _iterate_blocks(ranks: list[RankRecord], times: str, losses: str) -> Iterator[tuple[float, list[float | None]]]:
    """Yield the seconds of the slowest rank, and the losses of all ranks, block by block."""
    series = [getattr(rank, losses) for rank in ranks]
    for number, seconds in enumerate(zip(*(getattr(rank, times) for rank in ranks), strict=False)):
        yield max(seconds), [of_rank[number] if number < len(of_rank) else None for of_rank in series]


def _compute_mean(losses: Sequence[float | None], weights: Sequence[int]) -> float | None:
    weighted = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if loss is not None and weight]
    return sum(loss * weight for loss, weight in weighted) / sum(weight for _, weight in weighted) if weighted else None
