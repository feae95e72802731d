"""The losses of a run over its updates, samples and seconds of training, warm-up too. Layer 3."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scalebench.results import CurvePoint, RankRecord, Result


@dataclass
class Learning:
    """A block of updates each: where training stood at its end, and the mean loss over it; None: no loss is known."""

    updates: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of blocks: what lies between them is no training
    losses: list[float | None] = field(default_factory=list)
    course: list[CurvePoint] = field(default_factory=list)  # of a training that goes to a stop
    _met: int = 0  # points of the course that lie behind

    def points(self, over: Sequence[float]) -> list[tuple[float, float]]:
        """(`over`, loss) where there is one."""
        return [(x, loss) for x, loss in zip(over, self.losses, strict=True) if loss is not None]

    def _add(self, updates: int, samples: int, seconds: float, loss: float | None) -> None:
        self._to_points(updates)
        self.updates.append(updates + (self.updates[-1] if self.updates else 0))
        self.samples.append(samples + (self.samples[-1] if self.samples else 0))
        self.seconds.append(seconds + (self.seconds[-1] if self.seconds else 0.0))
        self.losses.append(loss)

    def _to_points(self, room: float) -> None:
        """On to the points of the course that leave no room for a block of so many updates. The blocks that these
        points cut short are in no series, and the next one begins at the point."""
        while self._met < len(self.course):
            point, at = self.course[self._met], self.updates[-1] if self.updates else 0
            if point.step >= at + room:
                return
            self._met += 1
            if point.step == at:
                self.samples[-1] = point.samples  # the last batch of an epoch may be a smaller one
                continue
            self.updates.append(point.step)
            self.samples.append(point.samples)
            self.seconds.append(max([point.train_s, *self.seconds[-1:]]))
            self.losses.append(None)


def learning(result: Result) -> Learning:
    """Of all ranks together: a block takes as long as on the slowest, its loss is the mean weighted by samples, as
    `quality.final_loss` is. Blocks that not every rank finished are left out. Seconds of a training that goes to a stop
    are without its first update, which compiles, as those of its curve are."""
    found, ranks = Learning(course=result.quality.curve), result.ranks
    if not ranks:
        return found
    # How many samples a warm-up block had is not kept: every rank had its share of the batch, as later on.
    shares = [rank.block_samples[0] if rank.block_samples else 1 for rank in ranks]
    steps = ranks[0].warmup_block_steps or 0
    warmup = _blocks(ranks, "warmup_block_s", "warmup_losses") if steps else iter(())
    for seconds, losses in warmup:
        compiles = bool(found.course) and not found.updates
        found._add(steps, steps * result.scale.global_batch, 0.0 if compiles else seconds, _mean(losses, shares))
    steps = ranks[0].block_steps or 0
    measured = _blocks(ranks, "block_s", "block_losses")
    samples_of = zip(*(rank.block_samples for rank in ranks), strict=False)
    for (seconds, losses), samples in zip(measured, samples_of, strict=False):
        found._add(steps, sum(samples), seconds, _mean(losses, samples))
    found._to_points(math.inf)
    return found


def _blocks(ranks: list[RankRecord], times: str, losses: str) -> Iterator[tuple[float, list[float | None]]]:
    """Seconds of the slowest, and the ranks' losses."""
    for number, seconds in enumerate(zip(*(getattr(rank, times) for rank in ranks), strict=False)):
        series = [getattr(rank, losses) for rank in ranks]
        yield max(seconds), [own[number] if number < len(own) else None for own in series]


def _mean(losses: Sequence[float | None], weights: Sequence[int]) -> float | None:
    known = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if loss is not None and weight]
    return sum(loss * weight for loss, weight in known) / sum(weight for _, weight in known) if known else None
