"""The fingerprint of a run: equal for two runs of the same workload, strategy and devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping
from typing import Any

import msgspec

from scalebench.core.spec import Config

# Keys that say which start of the program a run belongs to: no part of what is trained.
PROGRAM_KEYS = ("repeat", "resume", "strict", "wait", "baseline", "dry_run", "debug", "sweep")
# Dotted keys that change neither what a run trains nor how it is measured.
LEFT_OUT = frozenset((
    *PROGRAM_KEYS,
    "dataset.cache",
    *(f"measure.{key}" for key in ("repeats", "max_repeats", "order", "slot_s")),  # of a sweep
    "script.first_step_s",  # a limit
    # Checks of a strategy and of its options; and who can reach its processes.
    *(f"strategy.{key}" for key in "adapter sync reduces_on approximate exact_with tolerance".split()),
    *(f"strategy.{key}" for key in "choices at_least cannot options.open_port".split()),
    # How long a job queues, which account pays, and which ports are used.
    *(f"hardware.{key}" for key in ("max_jobs", "ports")),
    *(f"hardware.kubernetes.{key}" for key in ("namespace", "queue", "claim")),
    *(f"hardware.slurm.{key}" for key in "account qos reservation time_minutes bin jobs".split()),
))  # fmt: skip


def drop_keys(tree: Mapping[str, Any], left_out: Container[str], above: str = "") -> dict[str, Any]:
    """Return a config as plain content without some of its dotted keys, and without those that do not matter to it: of
    a script and of pods where there are none, and when to evaluate a training without a stop condition."""
    kept = {
        name: drop_keys(value, left_out, f"{above}{name}.") if isinstance(value, dict) else value
        for name, value in tree.items()
        if f"{above}{name}" not in left_out
    }
    if above == "train." and not any(value is not None for value in (kept.get("stop") or {}).values()):
        return {name: value for name, value in kept.items() if not name.startswith("evaluate_")}
    if above == "hardware." and kept.get("scheduler") != "kubernetes":
        kept.pop("kubernetes", None)
    if not above and (kept.get("script") or {}).get("path") is None:
        kept.pop("script", None)
    return kept


def flatten(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a config, or of a YAML file, by dotted key; an empty mapping is one."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def compute_fingerprint(config: Config, gpus: int, device: str) -> str:
    """Return 16 hex digits of the spec without repeat, paths and switches of the program itself."""
    tree = drop_keys(msgspec.to_builtins(config), LEFT_OUT) | {"gpus": gpus, "device": device}
    ids = tree["hardware"]["device_ids"]
    if ids == list(range(len(ids))):  # the first ones, which is also the default
        tree["hardware"]["device_ids"] = []
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
