"""A few trials of test_coverage, for every run of the tests: enough to see a formula or a probe that is wrong."""

from __future__ import annotations

import pytest

from tests.truth.simulated_group import Times, white
from tests.truth.test_coverage import coverage

TRIALS, LEAST = 40, 33  # fewer would be seen in one of a thousand such tests, were the coverage 0.95


@pytest.mark.slow
@pytest.mark.truth
def test_every_figure_lies_in_its_interval() -> None:
    held, _, _ = coverage(2, white(), Times(), TRIALS)
    assert len(held) == 9
    assert min(held.values()) >= LEAST, held
