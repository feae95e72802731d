"""Which runs are one training but for their seed, and what it is told by where no other column tells it. Layer 1."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from scalebench.machine_kind import kind_of
from scalebench.results import Result
from scalebench.spec import StopSpec, goes_to_stop, normalize_train_options, train_defaults

OF_NO_MATTER = ("seed", "repeat", "resume", "baseline", "dry_run", "debug", "sweep", "measure", "gpus")
QUEUEING = ("max_jobs", "slurm", "stage")  # keys of the hardware
# Settings of `train` that are told in one text, as a strategy's options are: each is rarely another than its default.
TOLD = ("dropout", "momentum", "schedule", "warmup_epochs", "decay_epochs", "decay")


def cells(result: Result) -> dict[str, str | None]:
    """`training_id`: the same for runs that differ in seed and repeat alone, null for one that measured its
    throughput; `recipe`: `schedule=cosine warmup_epochs=5`, null where all is as it comes."""
    train = result.spec.get("train", {})
    return {"training_id": training_id(result) if to_stop(train) else None, "recipe": recipe(train)}


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
