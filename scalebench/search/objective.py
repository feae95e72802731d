"""What is sought: a figure of the row of each trial. Layer 4."""

from __future__ import annotations

import math
from pathlib import Path

from scalebench.results import LOWER_IS_BETTER, Result
from scalebench.rows import figures_of
from scalebench.spec import Config, InputError, goes_to_stop

# Column -> whether more of it is better; null: as the metric of the model has it.
OBJECTIVES: dict[str, bool | None] = {
    "metric": None,
    "best_metric": None,
    "train_metric": None,
    "time_to_target_s": False,
    "energy_j_to_target": False,
    "throughput_samples_per_s": True,
    "epoch_s": False,
}
TO_TARGET = ("time_to_target_s", "energy_j_to_target")
OF_METRIC = tuple(name for name, more in OBJECTIVES.items() if more is None)


def more_is_better(objective: str, metric: str) -> bool:
    known = OBJECTIVES[objective]
    return not metric.startswith(LOWER_IS_BETTER) if known is None else known


def label(objective: str, metric: str) -> str:
    """`mse`, `best mse`: a figure of the model's metric goes by the name of that."""
    return objective.replace("metric", metric).replace("_", " ") if objective in OF_METRIC else objective


def check(objective: str, config: Config) -> None:
    """InputError where no trial would have that figure."""
    if objective in TO_TARGET and config.train.stop.target is None:
        raise InputError(f"hydra.sweeper.objective={objective} is the way to a target: say train.stop.target")
    if objective in ("best_metric", "train_metric") and not goes_to_stop(config.train.stop):
        raise InputError(
            f"hydra.sweeper.objective={objective} is of a training to a stop: say train.stop.seconds or another stop"
        )
    if objective not in (*TO_TARGET, *OF_METRIC):
        return
    if not config.measure.evaluate:
        raise InputError(f"hydra.sweeper.objective={objective} is looked at in evaluations: measure.evaluate=false")
    if config.dataset.validation_share == 0:
        raise InputError(
            f"hydra.sweeper.objective={objective} is of the validation part: dataset.validation_share=0 leaves none"
        )


def value_of(result: Result, folder: Path, objective: str) -> float | None:
    """None: the run has no such figure, or none that can be compared."""
    value = figures_of(result, folder).cells[objective]
    return float(value) if value is not None and math.isfinite(value) else None
