"""The curve of a training: where it stood at each of its points. Layer 0."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field


@dataclass
class CurvePoint:
    """Where a training stood when it was evaluated, between two updates."""

    step: int  # updates so far
    epochs: float  # passes over the training samples so far
    samples: int  # of all replicas, so far
    train_s: float  # seconds of all updates but the first, which compiles; what lies between updates is not in it
    learning_rate: float  # of the last update
    loss: float | None  # training loss, mean per sample over the updates since the point before
    loss_samples: int  # that it is a mean over
    metrics: dict[str, float] = field(default_factory=dict)  # of the validation part; empty: there is none
    train_metrics: dict[str, float] = field(default_factory=dict)  # likewise of as many samples that were trained on
    evaluate_s: float = 0.0  # that this evaluation took
    at_s: float = 0.0  # when it began, seconds since the epoch


LOWER_IS_BETTER = ("mse", "cross_entropy")


def reached(metric: str, value: float, target: float) -> bool:
    """Whether `value` is as good as `target`: errors are to fall, an accuracy is to rise."""
    return value <= target if metric.startswith(LOWER_IS_BETTER) else value >= target


def first_reached(curve: list[CurvePoint], metric: str, target: float) -> CurvePoint | None:
    """The first point whose validation metric is as good as `target`; None: it was never reached."""
    for point in curve:
        if metric in point.metrics and reached(metric, point.metrics[metric], target):
            return point
    return None


def merged_curve(curves: list[list[CurvePoint]]) -> list[CurvePoint]:
    """Of all ranks: seconds are the slowest's, the loss is the mean over all samples; the rest is alike on all."""
    return [_merged(points) for points in zip(*curves, strict=False)]


def _merged(points: tuple[CurvePoint, ...]) -> CurvePoint:
    samples = sum(point.loss_samples for point in points)
    losses = [(point.loss, point.loss_samples) for point in points if point.loss is not None]
    return dataclasses.replace(
        points[0],
        train_s=max(point.train_s for point in points),
        evaluate_s=max(point.evaluate_s for point in points),
        loss=sum(loss * n for loss, n in losses) / samples if samples else None,
        loss_samples=samples,
    )
