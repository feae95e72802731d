"""What makes two runs the same run. Layer 0."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from scalebench.core.spec import Config, SlurmSpec, normalize_train_options

# Keys that came later, with the value that says what was so before there was one.
ADDED: tuple[tuple[str, str, Any], ...] = (
    ("measure", "search", "none"),
    ("measure", "memory_limit_bytes", None),
    *(("model", key, None) for key in ("torch", "keras", "code_digest")),
    *(("dataset", key, None) for key in ("builder", "code_digest", "requested_size")),
    ("dataset", "options", {}),
    ("hardware", "layout", "sequence"),
    *(("hardware", key, None) for key in ("interface", "stage")),
)
# The same of options of strategies.
ADDED_OPTIONS: dict[str, Any] = {"overlap": True}


def asked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a strategy without later ones that are as if there were none, so that older runs are equal to newer."""
    return {key: value for key, value in options.items() if key not in ADDED_OPTIONS or value != ADDED_OPTIONS[key]}


def fingerprint(config: Config, gpus: int, device: str) -> str:
    """16 hex digits of what is run: the spec without repeat, paths and switches of the program itself."""
    tree = dataclasses.asdict(config)
    for key in ("repeat", "resume", "baseline", "dry_run", "debug", "sweep"):
        del tree[key]
    del tree["dataset"]["cache"]
    for key in ("repeats", "order", "cool_down_s"):  # of a sweep, not of a run
        del tree["measure"][key]
    for part, key, value in ADDED:
        if tree[part][key] == value:
            del tree[part][key]
    for key in ("approximate", "tolerance", "choices", "at_least"):  # what it and its options are held to
        del tree["strategy"][key]
    tree["strategy"]["options"] = asked_options(tree["strategy"]["options"])
    tree["gpus"], tree["device"] = gpus, device
    _drop_unasked(tree["hardware"])
    tree["train"] = normalize_train_options(tree["train"])
    ids = tree["hardware"]["device_ids"]
    if ids == list(range(len(ids))):  # the first ones, which are taken where none are named
        tree["hardware"]["device_ids"] = []
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _drop_unasked(hardware: dict[str, Any]) -> None:
    """Without what says how long to queue and for whose money."""
    del hardware["max_jobs"]
    asked, usual = hardware["slurm"], dataclasses.asdict(SlurmSpec())
    queueing = ("account", "qos", "reservation", "time_minutes", "bin")
    hardware["slurm"] = {key: asked[key] for key in asked if key not in queueing and asked[key] != usual[key]}
