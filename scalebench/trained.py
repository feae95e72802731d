"""The columns of a training that goes to a stop, and of how its updates were made. Layer 1."""

from __future__ import annotations

from typing import Any

from scalebench import training_id
from scalebench.figures import Figures
from scalebench.results import LOWER_IS_BETTER, Result


def cells(result: Result) -> dict[str, Any]:
    """Null is what the run has none of: most of them, where it measured its throughput."""
    quality, train = result.quality, result.spec.get("train", {})
    last = quality.curve[-1] if quality.curve else None
    name = quality.metric_name or ""
    trained_on = last.train_metrics.get(name) if last else None
    of_points = [point.metrics[name] for point in quality.curve if name in point.metrics]
    search = quality.max_batch
    return {
        **{
            key: train.get(key)
            for key in ("optimizer", "weight_decay", "learning_rate_rule", "base_batch", "accumulate")
        },
        "learning_rate": quality.learning_rate if quality.learning_rate is not None else train.get("learning_rate"),
        "stopped_by": quality.stopped_by,
        "target": (train.get("stop") or {}).get("target"),
        "trained_s": last.train_s if last else None,
        "trained_steps": last.step if last else None,
        "trained_epochs": last.epochs if last else None,
        "train_metric": trained_on,
        "generalisation_gap": gap(name, last.metrics.get(name) if last else None, trained_on),
        "best_metric": _best(name, of_points),
        "first_update_s": quality.first_update_s,
        "evaluate_s": sum(point.evaluate_s for point in quality.curve) if quality.curve else result.phases.evaluate_s,
        "points": len(quality.curve) or None,
        "max_batch_per_device": search.batch_per_device if search else None,
        "memory_limit_bytes": search.limit_bytes if search else None,
        **training_id.cells(result),
    }


def epoch_s(result: Result) -> float | None:
    """Of a training that was over within warm-up, from all its updates but the first; None for less than an epoch of
    them, which nobody may take for a whole one."""
    if result.status != "ok" or not result.quality.curve or not result.workload.train_samples:
        return None
    last = result.quality.curve[-1]
    epochs = (last.samples - result.scale.global_batch) / result.workload.train_samples
    return last.train_s / epochs if epochs >= 1 and last.train_s > 0 else None


def measured_samples(result: Result) -> int | None:
    """Of the measured phase of a training, all of which its energy is for: also those in blocks that a point of the
    curve cut short, which are in no series. None for a run that measured its throughput."""
    quality, work, first = result.quality, result.workload, result.ranks[0] if result.ranks else None
    if not quality.curve or first is None or not work.updates_per_epoch or not work.train_samples:
        return None
    epochs, rest = divmod(len(first.warmup_block_s) * (first.warmup_block_steps or 1), work.updates_per_epoch)
    found = quality.curve[-1].samples - epochs * work.train_samples - rest * result.scale.global_batch
    return found if found > 0 else None


def target_speedup(run: Figures, baseline: Figures | None) -> float | None:
    """How many times sooner it got to the target, both with the same one; None where one of them never did."""
    mine, theirs = (one.cells["time_to_target_s"] if one is not None else None for one in (run, baseline))
    return theirs / mine if mine and theirs else None


def gap(metric: str, validation: float | None, trained_on: float | None) -> float | None:
    """How much worse the model is on what it has not seen, in the metric's own unit: above 0 is worse."""
    if validation is None or trained_on is None:
        return None
    return validation - trained_on if metric.startswith(LOWER_IS_BETTER) else trained_on - validation


def _best(metric: str, found: list[float]) -> float | None:
    return (min if metric.startswith(LOWER_IS_BETTER) else max)(found, default=None)
