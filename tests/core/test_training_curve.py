"""The curve of a training, as all ranks saw it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.core.result import CurvePoint, first_reached, merged_curve, reached


def point(step: int = 10, train_s: float = 1.0, loss: float | None = 0.5, n: int = 10, **changes: Any) -> CurvePoint:
    return dataclasses.replace(CurvePoint(step, 1.0, 100, train_s, 1e-3, loss, n), **changes)


@pytest.mark.parametrize(
    ("metric", "value", "target", "good"),
    [
        ("mse", 0.1, 0.2, True), ("mse", 0.2, 0.2, True), ("mse", 0.3, 0.2, False),
        ("cross_entropy", 0.1, 0.2, True), ("accuracy", 0.9, 0.8, True), ("accuracy", 0.8, 0.8, True),
        ("accuracy", 0.7, 0.8, False), ("top5_accuracy", 0.9, 0.8, True),
    ],
)  # fmt: skip
def test_errors_fall_to_a_target_and_accuracies_rise(metric: str, value: float, target: float, good: bool) -> None:
    assert reached(metric, value, target) is good


def test_the_first_point_counts_even_if_it_is_lost_again() -> None:
    curve = [point(step, metrics={"mse": mse}) for step, mse in ((1, 0.9), (2, 0.1), (3, 0.05), (4, 0.7))]
    found = first_reached([point(0), *curve], "mse", 0.2)
    assert found is not None and found.step == 2, "a point without the metric is passed over"
    assert first_reached(curve, "mse", 0.01) is None and first_reached([], "mse", 1.0) is None


def test_the_slowest_ranks_seconds_and_the_mean_of_all_losses() -> None:
    mine = [point(train_s=1.0, loss=0.5, n=30, evaluate_s=0.1, at_s=5.0, metrics={"mse": 0.3})]
    others = [point(train_s=1.5, loss=0.9, n=10, evaluate_s=0.05, at_s=6.0, metrics={"mse": 0.3})]
    (found,) = merged_curve([mine, others])
    assert (found.train_s, found.evaluate_s, found.loss_samples) == (1.5, 0.1, 40)
    assert found.loss == pytest.approx(0.6)
    assert (found.at_s, found.metrics) == (5.0, {"mse": 0.3})


def test_ranks_without_a_loss_count_for_nothing() -> None:
    """Of a pipeline only the last one has any."""
    (found,) = merged_curve([[point(loss=None, n=0)], [point(loss=0.9, n=10)]])
    assert (found.loss, found.loss_samples) == (0.9, 10)
    (found,) = merged_curve([[point(loss=None, n=0)]])
    assert (found.loss, found.loss_samples) == (None, 0)


def test_points_that_all_ranks_have() -> None:
    """One that failed earlier than another left fewer."""
    assert [p.step for p in merged_curve([[point(1), point(2)], [point(1)]])] == [1]
    assert merged_curve([[point(1)], []]) == [] and merged_curve([]) == []
