"""What a search is told, checked before anything starts."""

from __future__ import annotations

import pytest

from scalebench.search.settings import SearchConf, check
from scalebench.spec import InputError


def test_the_defaults_are_sound() -> None:
    check(SearchConf())


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        (SearchConf(objective="metrik"), "no objective of a search 'metrik'; did you mean 'metric'?"),
        (SearchConf(sampler="tpa"), "no sampler of a search 'tpa'; did you mean 'tpe'?"),
        (SearchConf(n_trials=0), "hydra.sweeper.n_trials=0 should be at least 1"),
        (SearchConf(startup_trials=0), "hydra.sweeper.startup_trials=0 should be at least 1"),
        (SearchConf(seed=-1), "hydra.sweeper.seed=-1 should be at least 0"),
    ],
)
def test_what_makes_no_sense(conf: SearchConf, line: str) -> None:
    with pytest.raises(InputError) as caught:
        check(conf)
    assert str(caught.value) == line
