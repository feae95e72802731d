"""Searches without runs: a space from overrides, and trials whose value a formula gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from scalebench_search.objective import SearchSettings
from scalebench_search.search_space import SearchSpace, parse_space
from scalebench_search.study import Outcome, Study

RATE = "train.learning_rate=tag(log, interval(1e-5, 1e-1))"


def make_space(*overrides: str) -> SearchSpace:
    return parse_space(OverridesParser.create().parse_overrides(list(overrides)))


def make_study(*overrides: str, more_is_better: bool = False, **settings: Any) -> Study:
    return Study(SearchSettings(**settings), make_space(*overrides), more_is_better, "mse")


def run_trials(study: Study, value_of: Callable[[dict[str, str]], float], limit: int = 1000) -> list[list[str]]:
    """Record for each trial what a formula gives for its overrides, up to `limit` trials; returns their overrides."""
    seen = []
    while len(seen) < limit and (batch := study.propose(1)):
        (trial,) = batch
        seen.append(trial.overrides)
        value = value_of(dict(word.split("=") for word in trial.overrides))
        study.record(trial.number, Outcome("complete", value))
    return seen
