"""The fingerprint of a run: equal for two runs of the same workload, strategy and devices, also across versions."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Any

import msgspec

from scalebench.core.spec import Config, SlurmSpec, train_defaults

# Keys that say which start of the program a run belongs to: no part of what is trained.
PROGRAM_KEYS = ("repeat", "resume", "strict", "baseline", "dry_run", "debug", "sweep")
# Keys that were added after the first records, with the value that stands for the behavior before there was one.
LATER_KEYS: tuple[tuple[str, str, Any], ...] = (
    ("measure", "search", "none"),
    ("measure", "memory_limit_bytes", None),
    *(("model", key, None) for key in ("torch", "keras", "code_digest")),
    *(("dataset", key, None) for key in ("builder", "loader", "code_digest", "requested_size", "workers")),
    ("dataset", "augment", True),
    ("dataset", "options", {}),
    ("hardware", "layout", "sequence"),
    ("hardware", "nodes_share_cores", False),
    *(("hardware", key, None) for key in ("interface", "node_copy")),
)
# The same for options of strategies.
LATER_OPTIONS: dict[str, Any] = {
    "overlap": True,
    "open_port": False,
    "sigterm": "lightning",
    "comm_hook": "none",
    "powersgd_rank": 4,
}
ACCESS_OPTIONS = ("open_port",)  # who can reach the processes, which changes nothing of what they do


def normalize_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return a strategy's options without later ones at their default, so that older runs equal newer ones, and without
    those that change nothing of the training."""
    changed = {key: value for key, value in options.items() if key not in LATER_OPTIONS or value != LATER_OPTIONS[key]}
    return {key: value for key, value in changed.items() if key not in ACCESS_OPTIONS}


@functools.cache
def late_train_defaults() -> dict[str, Any]:
    """Return the defaults of those keys of `train` that were added after the first records."""
    defaults, keys = train_defaults(), list(train_defaults())
    return {key: defaults[key] for key in keys[keys.index("dropout") + 1 :]}


def normalize_train_options(train: dict[str, Any]) -> dict[str, Any]:
    """Return `train` of a composed config without late keys at their default, to equal that of an older record.

    When to evaluate does not matter to a training without a stop condition, so these keys are left out there.
    """
    late = late_train_defaults()
    kept = {key: value for key, value in train.items() if key not in late or value != late[key]}
    if not any(value is not None for value in (kept.get("stop") or {}).values()):
        kept = {key: value for key, value in kept.items() if not key.startswith("evaluate_")}
    return kept


def compute_fingerprint(config: Config, gpus: int, device: str) -> str:
    """Return 16 hex digits of the spec without repeat, paths and switches of the program itself."""
    tree = msgspec.to_builtins(config)
    for key in PROGRAM_KEYS:
        del tree[key]
    del tree["dataset"]["cache"]
    for key in ("repeats", "max_repeats", "order", "slot_s", "cool_down_s"):  # they concern a sweep, not a run
        del tree["measure"][key]
    if config.script.path is None:
        del tree["script"]
    else:
        del tree["script"]["first_step_s"]  # a limit
        if config.script.command is None:  # a later key
            del tree["script"]["command"]
    for part, key, default in LATER_KEYS:
        if tree[part][key] == default:
            del tree[part][key]
    # Checks of the strategy and of its options.
    for key in "adapter sync reduces_on approximate exact_with tolerance choices at_least cannot".split():
        del tree["strategy"][key]
    tree["strategy"]["options"] = normalize_options(tree["strategy"]["options"])
    tree["gpus"], tree["device"] = gpus, device
    _drop_queue_settings(tree["hardware"])
    tree["train"] = normalize_train_options(tree["train"])
    ids = tree["hardware"]["device_ids"]
    if ids == list(range(len(ids))):  # the first ones, which is also the default
        tree["hardware"]["device_ids"] = []
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _drop_queue_settings(hardware: dict[str, Any]) -> None:
    """Remove the settings that only decide how long a job queues, which account pays and which ports are used, and all
    defaults of SLURM."""
    del hardware["max_jobs"], hardware["ports"]
    slurm, defaults = hardware["slurm"], dataclasses.asdict(SlurmSpec())
    queueing = ("account", "qos", "reservation", "time_minutes", "bin", "jobs")
    hardware["slurm"] = {key: slurm[key] for key in slurm if key not in queueing and slurm[key] != defaults[key]}
