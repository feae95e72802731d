"""Searches without runs: a space from words, and trials that are told what a formula gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from scalebench.search.settings import SearchConf
from scalebench.search.space import Space, space_of
from scalebench.search.trials import Search, Verdict

RATE = "train.learning_rate=tag(log, interval(1e-5, 1e-1))"


def space(*words: str) -> Space:
    return space_of(OverridesParser.create().parse_overrides(list(words)))


def search(*words: str, journal: Path | None = None, more_is_better: bool = False, **conf: Any) -> Search:
    return Search(SearchConf(**conf), space(*words), more_is_better, "mse", {"space": " ".join(words)}, journal)


def follow(made: Search, value_of: Callable[[dict[str, str]], float], most: int = 1000) -> list[list[str]]:
    """Tell each trial what its words give, up to `most` of them; their words."""
    seen = []
    while len(seen) < most and (batch := made.batch(1)):
        (trial,) = batch
        seen.append(trial.words)
        value = value_of(dict(word.split("=") for word in trial.words))
        made.tell(trial.number, Verdict("complete", value))
    return seen
