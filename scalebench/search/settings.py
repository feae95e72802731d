"""What a search is told under `hydra.sweeper`. Layer 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalebench.search.objective import OBJECTIVES
from scalebench.spec import InputError
from scalebench.suggest import no_such

SWEEPER = "hydra_plugins.scalebench.ScalebenchSearch"
SAMPLERS = ("random", "tpe")


@dataclass
class SearchConf:
    """`hydra/sweeper=search`: keys and defaults, as Hydra shows and checks them."""

    _target_: str = SWEEPER
    params: dict[str, Any] | None = None  # what is searched, in the words of the command line
    n_trials: int = 20  # at the most, those of the folder that a search goes on in among them
    objective: str = "metric"
    sampler: str = "tpe"  # tpe | random
    startup_trials: int = 10  # of tpe: at random, before there is enough to learn from
    seed: int = 0  # of the proposals, not of the trainings


def check(conf: SearchConf) -> None:
    """InputError for a setting that nothing is known of."""
    if conf.objective not in OBJECTIVES:
        raise InputError(no_such("objective of a search", conf.objective, OBJECTIVES))
    if conf.sampler not in SAMPLERS:
        raise InputError(no_such("sampler of a search", conf.sampler, SAMPLERS))
    for name, least in (("n_trials", 1), ("startup_trials", 1), ("seed", 0)):
        if getattr(conf, name) < least:
            raise InputError(f"hydra.sweeper.{name}={getattr(conf, name)} should be at least {least}")
