"""The losses of a run over its steps, of all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scalebench.core.result import CurvePoint, RankRecord, Result


@dataclass
class LossSeries:
    """The losses of a run, one entry for each block of steps: the totals at its end, and the mean loss over it."""

    steps: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of blocks: what lies between them is not training
    losses: list[float | None] = field(default_factory=list)  # None: unknown
    measured: list[int] = field(default_factory=list)  # places of the blocks after warm-up
    curve: list[CurvePoint] = field(default_factory=list)  # of a training that goes to a stop
    _passed: int = 0  # points of the curve before the next block

    def make_points(self, x: Sequence[float]) -> list[tuple[float, float]]:
        """Return (x, loss) for all blocks with a loss."""
        return [(place, loss) for place, loss in zip(x, self.losses, strict=True) if loss is not None]

    def add_block(self, steps: int, samples: int, seconds: float, loss: float | None) -> None:
        self.pass_points(steps)
        self.steps.append(steps + (self.steps[-1] if self.steps else 0))
        self.samples.append(samples + (self.samples[-1] if self.samples else 0))
        self.seconds.append(seconds + (self.seconds[-1] if self.seconds else 0.0))
        self.losses.append(loss)

    def pass_points(self, steps: float) -> None:
        """Advance to the point of the curve after which a block of `steps` fits before the next one.

        Evaluation cuts blocks short. Such blocks are in no series, and the next block begins at the point.
        """
        while self._passed < len(self.curve):
            point, done = self.curve[self._passed], self.steps[-1] if self.steps else 0
            if point.step >= done + steps:
                return
            self._passed += 1
            if point.step == done:
                self.samples[-1] = point.samples  # the last batch of an epoch may be smaller
                continue
            self.steps.append(point.step)
            self.samples.append(point.samples)
            self.seconds.append(max([point.train_s, *self.seconds[-1:]]))
            self.losses.append(None)


def compute_losses(result: Result) -> LossSeries:
    """Combine the losses of all ranks, warm-up included.

    A block takes as long as on the slowest rank, and its loss is the mean weighted by samples. Blocks that not every
    rank finished are left out. The seconds of a training to a stop exclude its first step, which compiles, like those
    of its curve.
    """
    series, ranks = LossSeries(curve=result.quality.curve), result.ranks
    if not ranks:
        return series
    # The record has no sample counts of warm-up blocks: every rank had its share of the batch, as later on.
    shares = [rank.block_samples[0] if rank.block_samples else 1 for rank in ranks]
    steps = ranks[0].warmup_block_steps or 0
    warmup = _iterate_blocks(ranks, "warmup_block_s", "warmup_losses") if steps else iter(())
    for seconds, losses in warmup:
        compiles = bool(series.curve) and not series.steps
        loss = _compute_mean(losses, shares)
        series.add_block(steps, steps * result.scale.samples_per_step, 0.0 if compiles else seconds, loss)
    steps = ranks[0].block_steps or 0
    measured = _iterate_blocks(ranks, "block_s", "block_losses")
    samples_of = zip(*(rank.block_samples for rank in ranks), strict=False)
    for (seconds, losses), samples in zip(measured, samples_of, strict=False):
        series.add_block(steps, sum(samples), seconds, _compute_mean(losses, samples))
        series.measured.append(len(series.steps) - 1)
    series.pass_points(math.inf)
    return series


def _iterate_blocks(ranks: list[RankRecord], times: str, losses: str) -> Iterator[tuple[float, list[float | None]]]:
    """Yield the seconds of the slowest rank, and the losses of all ranks, block by block."""
    series = [getattr(rank, losses) for rank in ranks]
    for number, seconds in enumerate(zip(*(getattr(rank, times) for rank in ranks), strict=False)):
        yield max(seconds), [of_rank[number] if number < len(of_rank) else None for of_rank in series]


def _compute_mean(losses: Sequence[float | None], weights: Sequence[int]) -> float | None:
    weighted = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if loss is not None and weight]
    return sum(loss * weight for loss, weight in weighted) / sum(weight for _, weight in weighted) if weighted else None
