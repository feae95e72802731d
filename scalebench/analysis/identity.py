"""All keys by which finished or planned runs are matched: the one place where a new config key has to be considered.

What is hashed before a run starts, so that `resume` recognizes it, is core.config_fingerprint. What equal keys mean:

- `workload_key` and `strategy_key` of a RunIdentity: throughputs may be divided; Baselines finds the one-device runs
  that have the key of a run, and find_nearest the one of them whose `placement` is the most similar.
- `configuration_key`: repeats of one configuration.
- `training_key`: the same training, except for its seed.
- `curve_key` of rows: one scaling curve; DEVICES_OR_BATCH_COLUMNS and BARE_BASELINE_COLUMNS match N devices with one.
- MEMORY_COLUMNS, OPERATION_COLUMNS: memory, or times of collective operations, that share a table; VARIANT_COLUMNS:
  repeats of one line of such a table.
- `parallelism_key`: the same network, trained by data or by model parallelism.
- `comparison.pairing.pairing_key`: a pair of `scalebench compare`, by the dotted keys that are not in IGNORED_FACTS.
- `planned_curve_key`, `duration_key` of specs: one curve of a sweep with a time limit; runs that should take equally
  long.

`is_comparable` has no key: whether the quotient of two throughputs is a speedup although strategy and machine differ.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.config_fingerprint import PROGRAM_KEYS, normalize_options
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import Result, Scale, start_time
from scalebench.core.spec import Config, normalize_train_options

if TYPE_CHECKING:
    from scalebench.analysis.rows import RunSummary

Key = tuple[Any, ...]
_ENCODER = msgspec.json.Encoder(order="deterministic")

# Config keys that are no part of what is trained: the program's own, and how a run is measured.
UNTRAINED_KEYS = (*PROGRAM_KEYS, "measure")
# Keys of groups that say where files lie and how a run waits for its devices.
DATASET_PATH_KEYS = ("cache",)
QUEUE_KEYS = ("max_jobs", "slurm", "node_copy")
# Keys of `hardware` that say which devices ranks get and how these reach each other.
PLACEMENT_KEYS = ("device_ids", "bind", "environment", "layout", "interface")


def _workload(spec: Mapping[str, Any], without: Sequence[str], hardware_without: Sequence[str]) -> dict[str, Any]:
    """Return what a recorded config trains, and on what: without the groups `without`, and without these keys of its
    hardware."""
    tree = {key: value for key, value in spec.items() if key not in UNTRAINED_KEYS and key not in without}
    if (tree.get("script") or {}).get("path") is None:
        tree.pop("script", None)
    for group, left_out in (("dataset", DATASET_PATH_KEYS), ("hardware", hardware_without)):
        if group in tree:
            tree[group] = {key: value for key, value in tree[group].items() if key not in left_out}
    if "train" in tree:
        tree["train"] = normalize_train_options(tree["train"])
    return tree


Placement = tuple[tuple[tuple[str, str], ...], str, int]  # environment variables, CPU binding and first device


@dataclass(frozen=True)
class RunIdentity:
    """The settings, the machine and the time by which a run is matched with others."""

    run_id: str
    fingerprint: str
    status: str
    scale: Scale
    started: datetime
    workload_key: str  # without the strategy
    strategy_key: str  # with it and its options
    placement: Placement
    uses_default_options: bool  # of its strategy


R = TypeVar("R", bound=RunIdentity)
BATCH_KEYS = ("batch_per_device", "global_batch")


def identify(result: Result, local_batch: bool = False) -> RunIdentity:
    """Return what a run is matched by; older records lack some of its keys.

    Two runs share the text of a key if there may be a speedup between them: it covers the workload, the machine and the
    settings of training, but neither the number of devices nor how the run is measured. Placement is left out, since
    runs of one machine are comparable: find_nearest chooses among them. With `local_batch` equal keys mean the same
    batch of a device however it is configured, by scaling=weak with train.batch_per_device, or by scaling=strong with
    train.global_batch.
    """
    spec, scale, hardware = result.spec, result.scale, result.spec.get("hardware", {})
    left_out = ("gpus", "strategy", "scaling") if local_batch else ("gpus", "strategy")
    tree = _workload(spec, left_out, (*PLACEMENT_KEYS, *QUEUE_KEYS))
    parts: list[Any] = [tree, scale.device, sorted({gpu.name or "" for gpu in result.machine.gpus})]
    if local_batch:
        tree["train"] = {key: value for key, value in tree.get("train", {}).items() if key not in BATCH_KEYS}
        parts.append(scale.samples_per_step / scale.gpus)
    if scale.device == "cpu":
        parts.append(result.machine.cpu_model)
    if result.quality.max_batch is not None:  # a search for the largest batch measures few steps
        parts.append("max_batch")
    name, options = spec.get("strategy", {}).get("name"), spec.get("strategy", {}).get("options")
    text, strategy = (_ENCODER.encode(key).decode() for key in (parts, [name, options and normalize_options(options)]))
    variables = tuple(sorted((name, str(value)) for name, value in (hardware.get("environment") or {}).items()))
    return RunIdentity(
        result.run_id, result.fingerprint, result.status, scale, start_time(result),
        sys.intern(text), sys.intern(f"{text[:-1]},{strategy}]"),  # which the runs of a sweep share
        (variables, hardware.get("bind") or "numa", (hardware.get("device_ids") or [0])[0]),
        settings_cells(result)["options"] is None,
    )  # fmt: skip


def settings_cells(result: Result) -> dict[str, str | None]:
    """Return the options of the strategy that differ from its YAML (`loop=fit`), and the configured devices, binding,
    layout and environment variables."""
    hardware, defaults = result.spec.get("hardware", {}), strategy_option_defaults(result.scale.strategy)
    options = (result.spec.get("strategy", {}).get("options") or {}).items()
    arguments = ((result.spec.get("script") or {}).get("args") or {}).items()
    changed = [f"{key}={value}" for key, value in options if value != defaults.get(key, value)]
    changed += [f"{key}={value}".replace(" ", "") for key, value in arguments]
    variables = [f"{name}={value}" for name, value in (hardware.get("environment") or {}).items()]
    return {
        "options": " ".join(changed) or None,
        "environment": " ".join(variables) or None,
        "bind": hardware.get("bind"),
        "layout": hardware.get("layout"),
        "device_ids": " ".join(map(str, hardware.get("device_ids") or [])) or None,
    }


def configuration_key(run: RunIdentity) -> tuple[str, str, str]:
    """Return what repeats of a configuration share: fingerprint, kind of machine, and version of the framework."""
    return run.fingerprint, run.strategy_key, run.scale.framework_version or ""


class Baselines(Generic[R]):
    """The one-device runs, among those loaded together, that a run's speedups are measured against."""

    def __init__(self, runs: Iterable[R]) -> None:
        self._by_strategy_key: dict[str, list[R]] = {}
        self._by_name: dict[tuple[str, str], list[R]] = {}
        for run in runs:
            if run.status == "ok" and run.scale.gpus == 1:
                self._by_strategy_key.setdefault(run.strategy_key, []).append(run)
                if run.scale.framework == "none" or run.uses_default_options:
                    self._by_name.setdefault((run.scale.strategy, run.workload_key), []).append(run)

    def find_self(self, run: RunIdentity, as_bare: bool = False) -> R | None:
        """Return the nearest run of the same strategy on one device."""
        return find_nearest(self._by_strategy_key.get(run.strategy_key, ()), run, as_bare)

    def find_bare(self, run: RunIdentity) -> R | None:
        """Return the nearest run without a wrapper: the strategy's key `baseline`, with its default options."""
        name = run.scale.baseline_bare
        if name == run.scale.strategy and run.scale.framework == "none":  # its options are its workload
            return self.find_self(run, as_bare=True)
        candidates = self._by_name.get((name, run.workload_key), ()) if name else ()
        if not candidates and name == run.scale.strategy:
            return self.find_self(run)
        return find_nearest(candidates, run, as_bare=True)


def find_nearest(candidates: Iterable[R], run: RunIdentity, as_bare: bool = False) -> R | None:
    """Return the run itself if it is a candidate, else one of the same repeat if there is one, and closest in time.

    The same placement comes before the default one, and that before all others. Runs close in time are preferred since
    machines drift. `as_bare`: a bare run on one device is compared with the default placement rather than with itself,
    so that a sweep over single devices compares these devices.
    """
    is_bare_itself = as_bare and run.scale.gpus == 1 and run.scale.baseline_bare == run.scale.strategy

    def distance(other: R) -> tuple[object, ...]:
        variables, bind, first = other.placement
        differing = [] if is_bare_itself else [a != b for a, b in zip(other.placement, run.placement, strict=True)]
        is_other_run, is_other_repeat = other.run_id != run.run_id, other.scale.repeat != run.scale.repeat
        apart = abs(other.started - run.started)
        return differing, variables != (), bind != "numa", first, is_other_run, is_other_repeat, apart

    return min(candidates, key=distance, default=None)


SAMPLE_KEYS = {"model": ("name", "options", "input_shape", "outputs"), "dataset": ("name", "image_size")}


def sample_key(result: Result) -> str:
    """Return what one sample is and which model trains on it; older records lack some of these keys."""
    groups = [[result.spec.get(group, {}).get(key) for key in keys] for group, keys in SAMPLE_KEYS.items()]
    return json.dumps(groups, sort_keys=True)


def is_comparable(run: RunSummary, baseline: RunSummary) -> bool:
    """Return whether the quotient of their throughputs is a speedup: the same samples through the same model, at a
    batch that scaling does not change. Strategy, machine and number of devices may differ.

    On one device weak and strong scaling are the same: such a run fits either, by its batch per device in weak scaling
    and its global batch in strong scaling.
    """
    a, b = run.scale, baseline.scale
    kinds = {scale.scaling for scale in (a, b) if scale.gpus > 1} or {"weak"}
    if run.sample_key != baseline.sample_key or len(kinds) > 1:
        return False
    return a.global_batch == b.global_batch if "strong" in kinds else a.batch_per_device == b.batch_per_device


def training_key(result: Result) -> str:
    """Return 16 hex digits of what is trained, how and where. Runs of unequal schedules, or on unequal machines, are
    never taken for two seeds of one training."""
    tree = _workload({"dataset": {}, "hardware": {}, "train": {}, **result.spec}, ("gpus", "seed"), QUEUE_KEYS)
    scale, machine = result.scale, classify_machine(result.machine).fingerprint
    place = [scale.gpus, scale.nodes, scale.device, scale.framework_version, machine]
    text = json.dumps([tree, place], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Columns of the frame. Texts of the form key=value need no name before them in the name of a curve.
KEY_VALUE_COLUMNS = ("model_options", "options", "environment", "train_options")
INPUT_COLUMNS = ("precision", "feed")
OPTIMIZER_COLUMNS = ("optimizer", "learning_rate_rule", "weight_decay", "accumulate")
SETTING_COLUMNS = (
    *("prefetch", "data_format", "bind", "layout", "device_ids", "framework_version", "compiler_used", "seed"),
    *OPTIMIZER_COLUMNS,
)
CURVE_COLUMNS = ("strategy", *KEY_VALUE_COLUMNS, *INPUT_COLUMNS, *SETTING_COLUMNS)
# Values that older records, which lack these columns, ran with.
COLUMN_DEFAULTS = {
    "bind": "numa",
    "layout": "sequence",
    "compiler_used": "none",
    "learning_rate_rule": "none",
    "weight_decay": 0.0,
    "accumulate": 1,
}
TRAINED_COLUMNS = tuple(name for name in CURVE_COLUMNS if name != "seed")
# Device ids and the layout over nodes cannot be equal for unequal numbers of devices.
DEVICES_OR_BATCH_COLUMNS = tuple(name for name in TRAINED_COLUMNS if name not in ("device_ids", "layout"))
# A bare baseline has options of its own, and may have been measured with another version of the framework.
BARE_BASELINE_COLUMNS = tuple(
    name for name in DEVICES_OR_BATCH_COLUMNS if name not in ("strategy", "options", "framework_version")
)
MEMORY_COLUMNS = ("model", "dataset", "hardware", "optimizer")
VARIANT_COLUMNS = ("strategy", "options", "environment", "bind", "layout", "device_ids")  # of operations in one table
OPERATION_COLUMNS = ["framework", "hardware", "gpus", "nodes", "name"]


def column_key(row: Mapping[str, Any], columns: Sequence[str]) -> Key:
    """Return the values of these columns, with defaults where the row of an older record has none."""
    return tuple(COLUMN_DEFAULTS.get(name) if row[name] is None else row[name] for name in columns)


def curve_key(row: Mapping[str, Any]) -> Key:
    """Return what the rows of one scaling curve share within its group."""
    return column_key(row, CURVE_COLUMNS)


def name_curves(keys: Sequence[Key], columns: Sequence[str] = CURVE_COLUMNS) -> dict[Key, str]:
    """Return names for keys of these columns: the strategy, and each setting of which one strategy comes with several
    values; INPUT_COLUMNS if any two keys differ in them, since such strategies are not compared like for like."""
    settings = {key: dict(zip(columns, key, strict=True)) for key in keys}
    everywhere = [name for name in INPUT_COLUMNS if len({curve.get(name) for curve in settings.values()}) > 1]
    return {key: _name_curve(curve, list(settings.values()), everywhere) for key, curve in settings.items()}


def _name_curve(curve: dict[str, Any], group: list[dict[str, Any]], everywhere: Sequence[str]) -> str:
    same_strategy = [other for other in group if other["strategy"] == curve["strategy"]]
    parts = [str(curve["strategy"])]
    for name in KEY_VALUE_COLUMNS:
        common = set.intersection(*(set((other.get(name) or "").split()) for other in same_strategy))
        parts += [text for text in (curve.get(name) or "").split() if text not in common]
    for name in (*INPUT_COLUMNS, *SETTING_COLUMNS):
        if name in everywhere or len({other.get(name) for other in same_strategy}) > 1:
            parts += [] if curve[name] is None else [f"{name}={str(curve[name]).replace(' ', ',')}"]
    return " ".join(parts)


def global_batch_key(row: Mapping[str, Any], group: Mapping[str, str]) -> Key:
    """Return what a row on N devices shares with one on a single device with N times the batch: the workload, the
    global batch and the optimizer's settings. `group` is that of the row's curve."""
    shared = (text for name, text in group.items() if name != "batch")
    return (*shared, row["global_batch"], row.get("learning_rate"), *(row.get(name) for name in OPTIMIZER_COLUMNS))


MODEL_KEYS = ("name", "options", "input_shape", "outputs", "torch", "keras", "code_digest")
PARALLELISM_COLUMNS = ("dataset", "hardware", "machine", "framework", "precision", "data_format", "feed")
SIZE_COLUMNS = ("gpus", "nodes", "global_batch")


def parallelism_key(row: Mapping[str, Any], spec: Mapping[str, Any], sizes: Sequence[str] = ()) -> str:
    """Return what rows share that train the same network on the same machine, by data or model parallelism, and that
    agree in the columns `sizes`."""
    network = [spec.get("model", {}).get(name) for name in MODEL_KEYS]
    return json.dumps([network, *(row[name] for name in (*PARALLELISM_COLUMNS, *sizes))], default=str)


# Dotted keys for `compare` that say nothing about what is trained: they never keep two runs from being a pair.
_DESCRIPTIVE_FACTS = (
    "model.description model.sources strategy.description strategy.requires strategy.devices strategy.choices "
    "strategy.at_least strategy.tolerance strategy.approximate strategy.exact_with strategy.max_gpus strategy.baseline "
    "strategy.sync strategy.reduces_on "
    "hardware.description hardware.sources hardware.links hardware.unsupported"
).split()
IGNORED_FACTS = {
    *UNTRAINED_KEYS,
    *(f"dataset.{key}" for key in DATASET_PATH_KEYS),
    *(f"hardware.{key}" for key in QUEUE_KEYS),
    *_DESCRIPTIVE_FACTS,
    *("model.params", "script.digest", "hardware.this_machine", "hardware.hosts"),
    *("hardware.scheduler", "hardware.memory_bytes", "hardware.gpu_memory_bytes"),
}
# The ignored facts whose differences a comparison does not show either.
HIDDEN_FACTS = {*PROGRAM_KEYS, *_DESCRIPTIVE_FACTS}
# Facts that change together with a key by which runs are compared: another machine has another processor.
BOUND_FACTS = {
    "hardware": ("device", "nodes", "machine.cpu_model", "machine.gpus"),
    "gpus": ("nodes", "hardware.device_ids", "hardware.environment", "hardware.layout"),
    "hardware.layout": ("nodes",),
}


def is_under(key: str, prefixes: Container[str]) -> bool:
    """Return whether a dotted key is one of `prefixes` or below one of them."""
    return any(above in prefixes for above in accumulate(key.split("."), "{}.{}".format))


def planned_curve_key(config: Config) -> str:
    """Return what the runs of one curve of a sweep share: everything but devices and repeat."""
    tree = msgspec.to_builtins(config, enc_hook=str)
    for key in ("gpus", "repeat"):
        del tree[key]
    return json.dumps(tree, sort_keys=True)


def duration_key(config: Config, length_unit: str) -> tuple[str, str, str]:
    """Return what runs of similar duration share; `length_unit` says by what the length of their training is set."""
    return config.strategy.name, config.model.name, length_unit
