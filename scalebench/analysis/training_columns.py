"""The columns of a training that goes to a stop, and of how its updates were made. Layer 1.

Which runs are one training but for their seed, and what it is told by where no other column tells it. Layer 1.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from scalebench.analysis.run_summary import Figures
from scalebench.core.machine.machine_class import kind_of
from scalebench.core.result import LOWER_IS_BETTER, Result
from scalebench.core.spec import StopSpec, goes_to_stop, normalize_train_options, train_defaults

OF_NO_MATTER = ("seed", "repeat", "resume", "baseline", "dry_run", "debug", "sweep", "measure", "gpus")
QUEUEING = ("max_jobs", "slurm", "stage")  # keys of the hardware
# Settings of `train` that are told in one text, as a strategy's options are: each is rarely another than its default.
TOLD = ("dropout", "momentum", "schedule", "warmup_epochs", "decay_epochs", "decay")


def training_id_cells(result: Result) -> dict[str, str | None]:
    """`training_id`: the same for runs that differ in seed and repeat alone, null for one that measured its
    throughput; `train_options`: `schedule=cosine warmup_epochs=5`, null where all is as it comes."""
    train = result.spec.get("train", {})
    return {"training_id": training_id(result) if to_stop(train) else None, "train_options": recipe(train)}


def to_stop(train: dict[str, Any]) -> bool:
    """Whether a run of these settings, which may be of an older record, trains to a stop."""
    stop = train.get("stop") or {}
    return goes_to_stop(StopSpec(**{key: value for key, value in stop.items() if key in train_defaults()["stop"]}))


def training_id(result: Result) -> str:
    """16 hex digits of what is trained, how and where. What differs in it is never taken for another seed of the
    same: neither schedules nor machines."""
    tree = {key: value for key, value in result.spec.items() if key not in OF_NO_MATTER}
    for group, left_out in (("dataset", ("cache",)), ("hardware", QUEUEING)):
        tree[group] = {key: value for key, value in tree.get(group, {}).items() if key not in left_out}
    tree["train"] = normalize_train_options(tree.get("train", {}))
    scale = result.scale
    ran = [scale.gpus, scale.nodes, scale.device, scale.framework_version, kind_of(result.machine).fingerprint]
    text = json.dumps([tree, ran], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recipe(train: dict[str, Any]) -> str | None:
    """Without settings that have no say: a decay belongs to its schedule, and momentum to its optimizer."""
    usual = train_defaults()
    idle = () if train.get("schedule") == "step" else ("decay_epochs", "decay")
    idle += () if train.get("optimizer") == "momentum" else ("momentum",)
    told = [key for key in TOLD if key not in idle and train.get(key, usual[key]) != usual[key]]
    return " ".join(f"{key}={_shown(train[key])}" for key in told) or None


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


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
        "first_step_s": quality.first_step_s,
        "evaluate_s": sum(point.evaluate_s for point in quality.curve) if quality.curve else result.phases.evaluate_s,
        "points": len(quality.curve) or None,
        "max_batch_per_device": search.batch_per_device if search else None,
        "memory_limit_bytes": search.limit_bytes if search else None,
        **training_id_cells(result),
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
    if not quality.curve or first is None or not work.steps_per_epoch or not work.train_samples:
        return None
    epochs, rest = divmod(len(first.warmup_block_s) * (first.warmup_block_steps or 1), work.steps_per_epoch)
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
