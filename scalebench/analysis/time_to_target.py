"""Trainings over their seeds: whether and when they got to the target, how good they became, and how many times sooner
that was than on one device. Layer 1.

A seed is one observation, however often it was launched: launches of a seed follow the same course, and differ in
their seconds alone. Seconds, epochs and speedups differ by factors, so their means are geometric and their intervals
Student's t on logarithms (pooling.over_launches); metrics and gaps have the arithmetic mean and Student's t.

An interval stands only where at least three seeds have the figure and none lacks it: seconds to a target that some
seeds never reached are those of the lucky ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.analysis.repeats import LEAST, over_launches
from scalebench.analysis.rows import limits
from scalebench.analysis.scaling_curves import cells
from scalebench.core.stats.estimates import CONFIDENCE, Interval, student_t

if TYPE_CHECKING:
    import pandas as pd

Figure = tuple[float | None, Interval | None]
Row = dict[str, Any]  # cells of the frame, None for null
FACTORS = ("time_to_target_s", "epochs_to_target", "trained_s", "trained_epochs")
LEVELS = ("metric", "best_metric", "train_metric", "generalisation_gap")
RATIOS = ("speedup_target_bare", "speedup_bare", "speedup_target_self", "speedup_self")
TOLD = (
    "training_id model dataset hardware machine scaling strategy gpus batch_per_device global_batch optimizer "
    "learning_rate learning_rate_rule base_batch weight_decay accumulate train_options options precision metric_name target"
).split()
COLUMNS = [
    *TOLD,
    *("seeds", "launches", "reached", "failed", "stopped_by"),
    *(f"{name}{end}" for name in (*FACTORS, *LEVELS, *RATIOS) for end in ("", "_low", "_high")),
]


@dataclass(frozen=True)
class Outcome:
    """What came of one training. `figures` are means over its seeds with their 95 % intervals, by column."""

    first: Row  # of the frame: the first launch that ended well, else the first
    launches: list[Row]  # that ended well, in the frame's order
    seeds: int  # that were tried
    reached: int  # seeds of which every launch got to the target
    failed: int  # seeds without a launch that ended well
    figures: dict[str, Figure]

    @property
    def target(self) -> float | None:
        target: float | None = self.first["target"]
        return target

    @property
    def stopped_by(self) -> list[str]:
        """What ended it, of several launches each reason once."""
        return list(dict.fromkeys(row["stopped_by"] for row in self.launches if row["stopped_by"] is not None))

    @property
    def by_seed(self) -> list[Row]:
        """The first launch of each seed."""
        firsts: dict[Any, Row] = {}
        for row in self.launches:
            firsts.setdefault(row["seed"], row)
        return list(firsts.values())


def outcomes(frame: pd.DataFrame) -> list[Outcome]:
    """Of the trainings to a stop in a frame of single runs (scalebench.load), in its order. Runs that were not tried
    (unsupported, cancelled), that ended for want of memory or that were ended from outside, tell nothing of it."""
    tried = frame[frame["training_id"].notna() & frame["status"].isin(["ok", "failed"])]
    rows: dict[str, list[Row]] = {}
    for row in tried.drop_duplicates("run_id").to_dict("records"):  # resume=true makes copies
        rows.setdefault(str(row["training_id"]), []).append(cells(row))
    return [_outcome(members) for members in rows.values()]


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """COLUMNS, a row for each training; empty where no run trained to a stop."""
    import pandas as pd

    rows = []
    for one in outcomes(frame):
        row = {name: one.first.get(name) for name in TOLD}
        row |= {"seeds": one.seeds, "launches": len(one.launches), "reached": one.reached, "failed": one.failed}
        row["stopped_by"] = " ".join(one.stopped_by) or None
        for name, figure in one.figures.items():
            row |= limits(name, name, *figure)
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _outcome(rows: list[Row]) -> Outcome:
    good = [row for row in rows if row["status"] == "ok"]
    by_seed: dict[Any, list[Row]] = {}
    for row in good:
        by_seed.setdefault(row["seed"], []).append({**row, "epochs_to_target": _epochs_to_target(row)})
    of_seeds, tried = list(by_seed.values()), len({row["seed"] for row in rows})
    figures = {name: _figure(name, of_seeds, tried, over_factors) for name in FACTORS}
    figures |= {name: _figure(name, of_seeds, tried, over_levels) for name in LEVELS}
    for name in RATIOS:
        own = good and all(row[f"baseline_{name.rpartition('_')[2]}_id"] == row["run_id"] for row in good)
        value, interval = _figure(name, of_seeds, tried, over_factors)
        figures[name] = (value, None if own else interval)  # against itself it is 1, of which there is no interval
    reached = sum(all(row["time_to_target_s"] is not None for row in launches) for launches in of_seeds)
    return Outcome((good or rows)[0], good, tried, reached, tried - len(of_seeds), figures)


def _figure(name: str, of_seeds: list[list[Row]], tried: int, over: Callable[[Sequence[float]], Figure]) -> Figure:
    """Over the seeds that have it, each of them with the mean of its launches."""
    known = [[row[name] for row in launches if row[name] is not None] for launches in of_seeds]
    means = [over(values)[0] for values in known if values]
    levels = [value for value in means if value is not None]
    if not levels:
        return None, None
    value, interval = over(levels)
    return value, interval if len(levels) == tried else None


def over_factors(values: Sequence[float]) -> Figure:
    """pooling.over_launches; of a training that reached its target with its first update, whose seconds are not
    counted, as over_levels."""
    return over_launches(values) if min(values) > 0 else over_levels(values)


def over_levels(values: Sequence[float]) -> Figure:
    """(mean, its 95 % interval by Student's t) of figures that may be negative; no interval of fewer than three."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count < LEAST:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    reach = student_t(count - 1, CONFIDENCE) * math.sqrt(variance / count)
    return mean, Interval(mean, mean - reach, mean + reach)


def _epochs_to_target(row: Row) -> float | None:
    """A training ends where it has reached its target."""
    epochs: float | None = row["trained_epochs"] if row["time_to_target_s"] is not None else None
    return epochs
