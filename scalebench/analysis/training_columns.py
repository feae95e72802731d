"""The columns of trainings to a stop (a target, epochs, steps or seconds), and of the settings of every training."""

from __future__ import annotations

from typing import Any

from scalebench.analysis.identity import training_key
from scalebench.analysis.run_summary import RunSummary
from scalebench.core.result import LOWER_IS_BETTER, Result
from scalebench.core.spec import StopSpec, has_stop, train_defaults

TRAIN_COLUMNS = ("optimizer", "weight_decay", "learning_rate_rule", "base_batch", "accumulate")
# Settings of `train` that share the column train_options, as a strategy's options do: each rarely has another value
# than its default.
TRAIN_OPTION_KEYS = ("dropout", "momentum", "schedule", "warmup_epochs", "decay_epochs", "decay")


def training_cells(result: Result) -> dict[str, Any]:
    """Return the columns of a run; most are null for one that only measured its throughput."""
    quality, train = result.quality, result.spec.get("train", {})
    last = quality.curve[-1] if quality.curve else None
    name = quality.metric_name or ""
    train_metric = last.train_metrics.get(name) if last else None
    metrics = [point.metrics[name] for point in quality.curve if name in point.metrics]
    search = quality.max_batch
    return {
        **{key: train.get(key) for key in TRAIN_COLUMNS},
        "learning_rate": quality.learning_rate,
        "stopped_by": quality.stopped_by,
        "target": (train.get("stop") or {}).get("target"),
        "trained_s": last.train_s if last else None,
        "trained_steps": last.step if last else None,
        "trained_epochs": last.epochs if last else None,
        "train_metric": train_metric,
        "generalisation_gap": generalisation_gap(name, last.metrics.get(name) if last else None, train_metric),
        "best_metric": (min if name.startswith(LOWER_IS_BETTER) else max)(metrics, default=None),
        "first_step_s": quality.first_step_s,
        "evaluate_s": sum(point.evaluate_s for point in quality.curve) if quality.curve else result.phases.evaluate_s,
        "points": len(quality.curve) or None,
        "max_batch_per_device": search.batch_per_device if search else None,
        "memory_limit_bytes": search.limit_bytes if search else None,
        **training_id_cells(result),
    }


def training_id_cells(result: Result) -> dict[str, str | None]:
    """Return `training_id`, equal for runs that differ in nothing but seed and repeat, null for one that measured its
    throughput; and `train_options`: `schedule=cosine warmup_epochs=5`, null if all have their defaults."""
    train = result.spec.get("train", {})
    training_id = training_key(result) if trains_to_stop(train) else None
    return {"training_id": training_id, "train_options": train_options_text(train)}


def trains_to_stop(train: dict[str, Any]) -> bool:
    """Return whether a run of these settings, perhaps of an older record, trains until a stop."""
    stop = train.get("stop") or {}
    return has_stop(StopSpec(**{key: value for key, value in stop.items() if key in train_defaults()["stop"]}))


def train_options_text(train: dict[str, Any]) -> str | None:
    """Return the settings that differ from their defaults and have an effect: `decay` and `decay_epochs` only with the
    schedule `step`, `momentum` only with the optimizers `momentum` and `nesterov`."""
    defaults = train_defaults()
    unused = [] if train.get("schedule") == "step" else ["decay_epochs", "decay"]
    unused += [] if train.get("optimizer") in ("momentum", "nesterov") else ["momentum"]
    used = [key for key in TRAIN_OPTION_KEYS if key not in unused]
    texts = [f"{key}={_format_value(train[key])}" for key in used if train.get(key, defaults[key]) != defaults[key]]
    return " ".join(texts) or None


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def epoch_s_of_training(result: Result) -> float | None:
    """Return the seconds of an epoch of a training that ended within warm-up, from all its steps but the first; None if
    it had less than one epoch of them, which cannot stand for a full one."""
    if result.status != "ok" or not result.quality.curve or not result.workload.train_samples:
        return None
    last = result.quality.curve[-1]
    epochs = (last.samples - result.scale.samples_per_step) / result.workload.train_samples
    return last.train_s / epochs if epochs >= 1 and last.train_s > 0 else None


def count_measured_samples(result: Result) -> int | None:
    """Count the samples of the measured phase of a training, which its energy is for; None for a run that measured its
    throughput.

    Blocks that a point of the curve cut short are in no series, but their samples count here.
    """
    quality, work, first = result.quality, result.workload, result.ranks[0] if result.ranks else None
    if not quality.curve or first is None or not work.steps_per_epoch or not work.train_samples:
        return None
    warmup_steps = len(first.warmup_block_s) * (first.warmup_block_steps or 1)
    epochs, steps = divmod(warmup_steps, work.steps_per_epoch)
    samples = quality.curve[-1].samples - epochs * work.train_samples - steps * result.scale.samples_per_step
    return samples if samples > 0 else None


def target_speedup(run: RunSummary, baseline: RunSummary | None) -> float | None:
    """Return the baseline's seconds to the target over the run's; None if one of them did not reach it."""
    seconds = run.cells["time_to_target_s"]
    base_s = None if baseline is None else baseline.cells["time_to_target_s"]
    return base_s / seconds if seconds and base_s else None


def generalisation_gap(metric: str, validation: float | None, training: float | None) -> float | None:
    """Return how much worse the metric is on unseen samples, in its own unit: above 0 is worse."""
    if validation is None or training is None:
        return None
    return validation - training if metric.startswith(LOWER_IS_BETTER) else training - validation
