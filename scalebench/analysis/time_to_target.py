"""Trainings over their seeds: whether and when they reached the target, how good they became, and their speedup to it.

A seed is one observation, however many runs it has: these follow the same course, and differ in their seconds alone.
Seconds, epochs and speedups differ by factors, so their means are geometric and their intervals Student's t on
logarithms; metrics and gaps have the arithmetic mean and Student's t. A seed has a figure if each of its runs does, and
there is an interval only if at least three seeds have it and none lacks it: seconds to a target that some seeds never
reached are those of the lucky ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.analysis.columns import interval_cells
from scalebench.analysis.identity import group_by
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.stats.estimates import Estimate
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS, mean_of_repeats, mean_over_repeats

if TYPE_CHECKING:
    import pandas as pd

Figure = Estimate | None  # None: no seed has it
Row = dict[str, Any]  # cells of the frame, None for null
FACTOR_COLUMNS = ("time_to_target_s", "epochs_to_target", "trained_s", "trained_epochs")
LEVEL_COLUMNS = ("metric", "best_metric", "train_metric", "generalisation_gap")
SPEEDUP_COLUMNS = ("speedup_target_bare", "speedup_bare", "speedup_target_self", "speedup_self")
TRAINING_COLUMNS = (
    "training_id model dataset hardware machine scaling strategy gpus batch_per_device global_batch optimizer "
    "learning_rate learning_rate_rule base_batch weight_decay accumulate train_options options precision "
    "metric_name target"
).split()
TRAINING_TABLE_COLUMNS = [
    *TRAINING_COLUMNS,
    *("seeds", "starts", "reached", "failed", "stopped_by"),
    *(f"{name}{end}" for name in (*FACTOR_COLUMNS, *LEVEL_COLUMNS, *SPEEDUP_COLUMNS) for end in ("", "_low", "_high")),
]


@dataclass(frozen=True)
class TrainingOutcome:
    """One training over its seeds. `figures` are means over the seeds with their 95 % intervals, by column."""

    first_run: Row  # the first row that is ok, else the first
    runs: list[Row]  # that are ok, in the order of the frame
    seeds: int  # that were tried
    reached: int  # seeds of which every run reached the target
    failed: int  # seeds without a run that is ok
    figures: dict[str, Figure]

    @property
    def target(self) -> float | None:
        target: float | None = self.first_run["target"]
        return target

    @property
    def stopped_by(self) -> list[str]:
        """The reasons why its runs ended, each once."""
        return list(dict.fromkeys(row["stopped_by"] for row in self.runs if row["stopped_by"] is not None))

    @property
    def by_seed(self) -> list[Row]:
        """The first run of each seed."""
        return [runs[0] for runs in group_by(self.runs, lambda row: row["seed"]).values()]


def summarize_trainings(frame: pd.DataFrame) -> list[TrainingOutcome]:
    """Return the outcome of each training to a stop in a frame of single runs (scalebench.load), in its order.

    Runs that were not tried (unsupported, cancelled), that ran out of memory or that were ended from outside do not
    count: they say nothing about the training.
    """
    tried = frame[frame["training_id"].notna() & frame["status"].isin(["ok", "failed"])]
    outcomes, once = [], plain_rows(tried.drop_duplicates("run_id"))  # resume=true makes copies
    for rows in group_by(once, lambda row: str(row["training_id"])).values():
        ended = [row for row in rows if row["status"] == "ok"]
        for row in rows:  # it ended at the target
            row["epochs_to_target"] = row["trained_epochs"] if row["time_to_target_s"] is not None else None
        by_seed = group_by(ended, lambda row: row["seed"])
        seeds = len({row["seed"] for row in rows})
        figures: dict[str, Figure] = {}
        for name in (*FACTOR_COLUMNS, *LEVEL_COLUMNS, *SPEEDUP_COLUMNS):
            mean = mean_over_repeats if name in LEVEL_COLUMNS else mean_of_factors
            values_of = {seed: [row[name] for row in runs] for seed, runs in by_seed.items()}
            means = {seed: mean(values).value for seed, values in values_of.items() if None not in values}
            figure, baseline = mean([*means.values()]) if means else None, f"baseline_{name.rpartition('_')[2]}_id"
            is_own = name in SPEEDUP_COLUMNS and all(row[baseline] == row["run_id"] for row in ended)
            if figure is not None and (is_own or len(means) < seeds):  # its own baseline is 1 exactly
                figure = Estimate(figure.value)
            figures[name] = figure
        reached = sum(all(row["time_to_target_s"] is not None for row in runs) for runs in by_seed.values())
        outcomes.append(TrainingOutcome((ended or rows)[0], ended, seeds, reached, seeds - len(by_seed), figures))
    return outcomes


def make_training_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return TRAINING_TABLE_COLUMNS with a row for each training; empty if no run trained to a stop."""
    import pandas as pd

    rows = []
    for outcome in summarize_trainings(frame):
        row = {name: outcome.first_run.get(name) for name in TRAINING_COLUMNS}
        row |= {"seeds": outcome.seeds, "starts": len(outcome.runs), "reached": outcome.reached,
                "failed": outcome.failed, "stopped_by": " ".join(outcome.stopped_by) or None}  # fmt: skip
        for name, figure in outcome.figures.items():
            row |= interval_cells(name, figure)
        rows.append(row)
    return pd.DataFrame(rows, columns=TRAINING_TABLE_COLUMNS)


def mean_of_factors(values: Sequence[float]) -> Estimate:
    """Return the geometric mean, with limits from three values on; with a zero (a training that reached its target with
    its first step, whose seconds are not counted) the arithmetic one."""
    if min(values) <= 0:
        return mean_over_repeats(values)
    mean = mean_of_repeats(values).to_estimate()
    return mean if len(values) >= MIN_REPEATS_FOR_LIMITS else Estimate(mean.value)
