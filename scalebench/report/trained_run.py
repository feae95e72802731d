"""What a training to a stop came to, of one run, as the terminal's details tell it. Layer 3."""

from __future__ import annotations

from scalebench import trained
from scalebench.report import units
from scalebench.results import CurvePoint, Result, first_reached

Facts = list[tuple[str, str]]


def rows(result: Result) -> Facts:
    """How long it was, how good the model became, when it reached its target; nothing of a run that measured its
    throughput."""
    curve = result.quality.curve
    if not curve:
        return []
    found = [("training", _length(result, curve[-1]))]
    if said := _level(result.quality.metric_name or "", curve[-1]):
        found.append(("validation", said))
    if said := _target(result):
        found.append(("target", said))
    return [*found, ("evaluation", _evaluation(curve))]


def _length(result: Result, last: CurvePoint) -> str:
    first_s, by = result.quality.first_update_s, result.quality.stopped_by
    words = f"{last.epochs:.3g} epochs, {last.step:,} updates, {units.seconds(last.train_s)}"
    words += "" if first_s is None else f" and {units.seconds(first_s)} for the first update, which compiles"
    return words if by is None else f"{words}; stopped by {by}"


def _level(metric: str, last: CurvePoint) -> str:
    value, gap = last.metrics.get(metric), trained.gap(metric, last.metrics.get(metric), last.train_metrics.get(metric))
    if value is None:
        return ""
    if gap is None:
        return f"{metric} {value:.4g}"
    return f"{metric} {value:.4g}, {abs(gap):.3g} {'worse' if gap >= 0 else 'better'} than on samples trained on"


def _target(result: Result) -> str:
    target = (result.spec.get("train", {}).get("stop") or {}).get("target")
    metric = result.quality.metric_name or ""
    if target is None:
        return ""
    at = first_reached(result.quality.curve, metric, target)
    if at is None:
        return f"{metric} {target:g} was not reached"
    return f"{metric} {target:g} after {units.seconds(at.train_s)} of training, {at.epochs:.3g} epochs"


def _evaluation(curve: list[CurvePoint]) -> str:
    points = f"{len(curve):,} {'point' if len(curve) == 1 else 'points'}"
    return f"{points}, {units.seconds(sum(point.evaluate_s for point in curve))}, outside the training's seconds"
