"""Read and check the settings of a search, and its objective: a column of its trials' results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.result import LOWER_IS_BETTER
from scalebench.core.spec import Config, has_stop

# By column: True where more is better, False where less is, None where that depends on the model's metric.
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
SAMPLERS = ("random", "tpe")


@dataclass
class SearchSettings:
    """The keys under `hydra.sweeper`, which conf/hydra/sweeper/search.yaml explains."""

    params: dict[str, Any] | None = None
    n_trials: int = 20
    objective: str = "metric"
    sampler: str = "tpe"
    startup_trials: int = 10
    seed: int = 0


def read_settings(values: Mapping[str, Any]) -> SearchSettings:
    """Read the settings that Hydra composed. Raise InputError for a wrong type, name or number."""
    plain = {**values, "params": dict(values.get("params") or {})}
    settings = OmegaConf.structured(SearchSettings)
    for key, value in plain.items():
        try:
            settings[key] = value
        except OmegaConfBaseException as error:
            raise InputError(f"hydra.sweeper.{key}={value}: {str(error).splitlines()[0]}") from error
    checked = OmegaConf.to_object(settings)
    assert isinstance(checked, SearchSettings)
    if checked.objective not in OBJECTIVES:
        raise InputError(unknown_name_message("objective of a search", checked.objective, OBJECTIVES))
    if checked.sampler not in SAMPLERS:
        raise InputError(unknown_name_message("sampler of a search", checked.sampler, SAMPLERS))
    for name, least in (("n_trials", 1), ("startup_trials", 1), ("seed", 0)):
        if getattr(checked, name) < least:
            raise InputError(f"hydra.sweeper.{name}={getattr(checked, name)} should be at least {least}")
    return checked


def more_is_better(objective: str, metric: str) -> bool:
    """Return whether a larger value is the better one; `metric` is the model's."""
    more = OBJECTIVES[objective]
    return not metric.startswith(LOWER_IS_BETTER) if more is None else more


def objective_label(objective: str, metric: str) -> str:
    """Name an objective for people by the model's metric: `mse`, `best mse`."""
    return objective.replace("metric", metric).replace("_", " ") if objective in OF_METRIC else objective


def check_objective(objective: str, config: Config) -> None:
    """Raise InputError where no trial would have a value of this objective."""
    if objective in TO_TARGET and config.train.stop.target is None:
        raise InputError(f"hydra.sweeper.objective={objective} needs a target: set train.stop.target")
    if objective in ("best_metric", "train_metric") and not has_stop(config.train.stop):
        raise InputError(
            f"hydra.sweeper.objective={objective} needs a training to a stop: set train.stop.seconds or another stop"
        )
    if objective not in (*TO_TARGET, *OF_METRIC):
        return
    if not config.measure.evaluate:
        raise InputError(f"hydra.sweeper.objective={objective} needs evaluations: measure.evaluate=false")
    if config.dataset.validation_share == 0:
        raise InputError(
            f"hydra.sweeper.objective={objective} needs validation samples: dataset.validation_share=0 leaves none"
        )


def objective_value(row: Mapping[str, Any], objective: str) -> float | None:
    """Return the value in a row of `scalebench.load`; None where it is missing or not finite."""
    value = row[objective]
    return float(value) if value is not None and math.isfinite(value) else None
