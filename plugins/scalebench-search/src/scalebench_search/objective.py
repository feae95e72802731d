"""The settings of a search, and its objective: a column of the results of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scalebench.core.errors import InputError, no_such
from scalebench.core.result import LOWER_IS_BETTER
from scalebench.core.spec import Config, goes_to_stop

# Column -> whether more of it is better; None: as for the metric of the model.
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
    """The keys under `hydra.sweeper`; their defaults stand in conf/hydra/sweeper/search.yaml, with what they mean."""

    params: dict[str, Any] | None = None
    n_trials: int = 20
    objective: str = "metric"
    sampler: str = "tpe"
    startup_trials: int = 10
    seed: int = 0


def read_settings(values: Mapping[str, Any]) -> SearchSettings:
    """Settings from what Hydra composed. InputError for a wrong type, name or number."""
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
        raise InputError(no_such("objective of a search", checked.objective, OBJECTIVES))
    if checked.sampler not in SAMPLERS:
        raise InputError(no_such("sampler of a search", checked.sampler, SAMPLERS))
    for name, least in (("n_trials", 1), ("startup_trials", 1), ("seed", 0)):
        if getattr(checked, name) < least:
            raise InputError(f"hydra.sweeper.{name}={getattr(checked, name)} should be at least {least}")
    return checked


def more_is_better(objective: str, metric: str) -> bool:
    """Whether a larger value is the better one; `metric` is the model's."""
    more = OBJECTIVES[objective]
    return not metric.startswith(LOWER_IS_BETTER) if more is None else more


def objective_label(objective: str, metric: str) -> str:
    """Name an objective for people by the model's metric: `mse`, `best mse`."""
    return objective.replace("metric", metric).replace("_", " ") if objective in OF_METRIC else objective


def check_objective(objective: str, config: Config) -> None:
    """InputError where no trial would have a value of this objective."""
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


def objective_value(row: Mapping[str, Any], objective: str) -> float | None:
    """The value in a row of `scalebench.load`; None: it has none, or none that can be compared."""
    value = row[objective]
    return float(value) if value is not None and math.isfinite(value) else None
