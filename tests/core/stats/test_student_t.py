"""Quantiles of Student's t, from a table and beyond it."""

from __future__ import annotations

import math
import sys

import pytest
from scipy.special import stdtrit

from scalebench.core.stats.estimates import TABLE, student_t


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [*range(1, len(TABLE) + 3), 1000, 2.5, 4.0, 30.5, math.inf])
def test_quantiles_are_those_of_scipy(freedom: float, confidence: float) -> None:
    assert student_t(freedom, confidence) == pytest.approx(float(stdtrit(freedom, (1 + confidence) / 2)), rel=1e-12)


def test_the_usual_ones_need_no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    student_t.cache_clear()
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert student_t(15, 0.95) == pytest.approx(2.1314495)
    with pytest.raises(ImportError):
        student_t(15, 0.9)


@pytest.mark.parametrize("confidence", [0, 1, -1, 2, float("nan")])
def test_what_is_no_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence lies between 0 and 1"):
        student_t(10, confidence)
