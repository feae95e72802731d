"""All keys by which finished or planned runs are matched: the one place where a new config key has to be considered.

What is hashed before a run starts, so that `resume` recognizes it, is core.config_fingerprint; `compare` pairs by
comparison.facts.pairing_key: all dotted keys that are not in LEFT_OUT["pair"].
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from scalebench.core import config_fingerprint
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.config_fingerprint import PROGRAM_KEYS
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import Result, Scale, start_time
from scalebench.core.spec import Config

if TYPE_CHECKING:
    from scalebench.analysis.rows import RunSummary

Key = tuple[Any, ...]
_ENCODER = msgspec.json.Encoder(order="deterministic")

# Dotted keys of the config, or groups of them.
_QUEUE_KEYS = ("hardware.max_jobs", "hardware.slurm", "hardware.kubernetes", "hardware.node_copy")  # how a run waits
# Keys that say which devices the ranks of a run get, and how these reach each other.
_PLACEMENT_KEYS = tuple(f"hardware.{key}" for key in ("device_ids", "bind", "environment", "layout", "interface"))
_UNTRAINED_KEYS = (*PROGRAM_KEYS, "measure", "dataset.cache", *_QUEUE_KEYS)
_DESCRIPTIVE_KEYS = (
    "model.description model.sources strategy.description strategy.requires strategy.devices strategy.choices "
    "strategy.at_least strategy.tolerance strategy.approximate strategy.exact_with strategy.max_gpus strategy.baseline "
    "strategy.sync strategy.reduces_on strategy.adapter strategy.cannot "
    "hardware.description hardware.sources hardware.links hardware.unsupported"
).split()
# By purpose, what runs need not share: for a speedup at the same batch, however that is configured (`local batch`), as
# seeds of one training, and as a pair of a comparison, which shows other differences than `hidden` ones.
_WITHOUT_DEVICES = {*_UNTRAINED_KEYS, *_PLACEMENT_KEYS, "gpus", "strategy"}
LEFT_OUT: dict[str, set[str]] = {
    "speedup": _WITHOUT_DEVICES,
    "local batch": _WITHOUT_DEVICES | {"scaling", "train.batch_per_device", "train.global_batch"},
    "training": {*_UNTRAINED_KEYS, "gpus", "seed"},
    "pair": {*_UNTRAINED_KEYS, *_DESCRIPTIVE_KEYS, "model.params", "script.digest", "hardware.this_machine",
             "hardware.hosts", "hardware.scheduler", "hardware.memory_bytes", "hardware.gpu_memory_bytes"},
    "hidden": {*PROGRAM_KEYS, *_DESCRIPTIVE_KEYS},
}  # fmt: skip
# Runs that train the same model on the same kind of sample agree in these keys.
SAMPLE_KEYS = tuple("model.name model.options model.input_shape model.outputs dataset.name dataset.image_size".split())


def select_config(spec: Mapping[str, Any], purpose: str) -> dict[str, Any]:
    """Return what a recorded config trains, and on what, without the keys that LEFT_OUT has for this purpose."""
    return config_fingerprint.drop_keys(spec, LEFT_OUT[purpose])


def collect(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the second items of these pairs by the first ones, both in order."""
    return {key: [value for _, value in of_key] for key, of_key in group_by(pairs, lambda pair: pair[0]).items()}


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by their key, both in order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


Placement = tuple[tuple[tuple[str, str], ...], str, int]  # environment variables, CPU binding and first device
T = TypeVar("T")
K = TypeVar("K")


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
    measure_key: str  # how it was measured, and over which interface
    placement: Placement
    uses_default_options: bool  # of its strategy


R = TypeVar("R", bound=RunIdentity)


def identify(result: Result, local_batch: bool = False) -> RunIdentity:
    """Return what a run is matched by.

    Two runs share the text of a key if there may be a speedup between them: it covers the workload, the machine and the
    settings of training, but neither the number of devices nor how the run is measured, nor placement, by which
    find_nearest chooses. With `local_batch` equal keys mean the same batch of a device however it is configured.
    """
    spec, scale, hardware = result.spec, result.scale, result.spec.get("hardware", {})
    parts: list[Any] = [select_config(spec, "local batch" if local_batch else "speedup"), scale.device,
                        sorted({gpu.name or "" for gpu in result.machine.gpus})]  # fmt: skip
    parts += [scale.samples_per_step / scale.gpus] if local_batch else []
    parts += [result.machine.cpu_model] if scale.device == "cpu" else []
    if result.quality.max_batch is not None:  # a search for the largest batch measures few steps
        parts.append("max_batch")
    name, options = spec.get("strategy", {}).get("name"), spec.get("strategy", {}).get("options")
    options = options and config_fingerprint.drop_keys(options, config_fingerprint.LEFT_OUT, "strategy.options.")
    text, strategy = (_ENCODER.encode(key).decode() for key in (parts, [name, options]))
    variables = tuple(sorted((name, str(value)) for name, value in (hardware.get("environment") or {}).items()))
    return RunIdentity(
        result.run_id, result.fingerprint, result.status, scale, start_time(result),
        sys.intern(text), sys.intern(f"{text[:-1]},{strategy}]"),  # which the runs of a sweep share
        sys.intern(json.dumps({"hardware": {"interface": hardware.get("interface")}, "measure": spec.get("measure")})),
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
        good = [run for run in runs if run.status == "ok" and run.scale.gpus == 1]
        bare = [run for run in good if run.scale.framework == "none" or run.uses_default_options]
        self._by_strategy_key = group_by(good, lambda run: run.strategy_key)
        self._by_name = group_by(bare, lambda run: (run.scale.strategy, run.workload_key))

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


def sample_key(result: Result) -> str:
    """Return what one sample is and which model trains on it."""
    is_program = (result.spec.get("script") or {}).get("path") is not None  # whose lengths are means
    parts = (key.partition(".") for key in SAMPLE_KEYS)
    values = [result.spec.get(group, {}).get(name) for group, _, name in parts]
    tokens = filter(None, [not is_program and result.workload.tokens_per_sample])
    return json.dumps([values, *tokens], sort_keys=True, default=str)


def is_comparable(run: RunSummary, baseline: RunSummary) -> bool:
    """Return whether the quotient of their throughputs is a speedup although strategy and machine may differ: the same
    samples through the same model, at a batch that scaling does not change. A run on one device fits either scaling."""
    a, b = run.scale, baseline.scale
    kinds = {scale.scaling for scale in (a, b) if scale.gpus > 1} or {"weak"}
    if run.sample_key != baseline.sample_key or len(kinds) > 1:
        return False
    return a.global_batch == b.global_batch if "strong" in kinds else a.batch_per_device == b.batch_per_device


def training_key(result: Result) -> str:
    """Return 16 hex digits of what is trained, how and where. Runs of unequal schedules, or on unequal machines, are
    never taken for two seeds of one training."""
    scale, machine = result.scale, classify_machine(result.machine).fingerprint
    place = [scale.gpus, scale.nodes, scale.device, scale.framework_version, machine]
    text = json.dumps([select_config(result.spec, "training"), place], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Columns of the frame. Texts of the form key=value need no name before them in the name of a curve.
KEY_VALUE_COLUMNS = ("model_options", "options", "environment", "train_options", "other_settings")
INPUT_COLUMNS = ("precision", "feed")
OPTIMIZER_COLUMNS = ("optimizer", "learning_rate_rule", "weight_decay", "accumulate")
SETTING_COLUMNS = (
    *("prefetch", "data_format", "bind", "layout", "device_ids", "framework_version", "compile", "seed"),
    *OPTIMIZER_COLUMNS,
)
CURVE_COLUMNS = ("strategy", *KEY_VALUE_COLUMNS, *INPUT_COLUMNS, *SETTING_COLUMNS)
TRAINED_COLUMNS = tuple(name for name in CURVE_COLUMNS if name != "seed")
# A curve and these tell the rows of a workload apart, unless they differ in a key without a column.
_ROW_COLUMNS = (
    *(name for name in CURVE_COLUMNS if name != "other_settings"),
    *("gpus", "scaling", "batch_per_device", "global_batch", "learning_rate", "target", "sequence_length"),
)
# Device ids and the layout over nodes cannot be equal for unequal numbers of devices.
DEVICES_OR_BATCH_COLUMNS = tuple(name for name in TRAINED_COLUMNS if name not in ("device_ids", "layout"))
# A bare baseline has options of its own, and may have been measured with another version of the framework.
_OWN_COLUMNS = ("strategy", "options", "framework_version")
BARE_BASELINE_COLUMNS = tuple(name for name in DEVICES_OR_BATCH_COLUMNS if name not in _OWN_COLUMNS)
MEMORY_COLUMNS = ("model", "dataset", "hardware", "optimizer")
VARIANT_COLUMNS = ("strategy", "options", "environment", "bind", "layout", "device_ids")  # of operations in one table
OPERATION_COLUMNS = ["framework", "hardware", "gpus", "nodes", "name"]


def column_key(row: Mapping[str, Any], columns: Sequence[str]) -> Key:
    return tuple(row[name] for name in columns)


def curve_key(row: Mapping[str, Any]) -> Key:
    """Return what the rows of one scaling curve share within its group."""
    return column_key(row, CURVE_COLUMNS)


def find_other_settings(runs: Iterable[tuple[RunIdentity, Mapping[str, Any]]]) -> dict[str, str]:
    """Return by fingerprint the keys without a column by which rows of one workload differ that agree in all columns:
    `cpus_per_device=2`. Of keys that change together the first is enough."""
    by_fingerprint = {run.fingerprint: (run, cells) for run, cells in runs}
    texts: dict[str, str] = {}
    for group in group_by(by_fingerprint.values(), lambda pair: column_key(pair[1], MEMORY_COLUMNS[:3])).values():
        keys = {run.fingerprint: column_key(cells, _ROW_COLUMNS) for run, cells in group}
        if len(set(keys.values())) == len(group):
            continue
        settings = {run.fingerprint: _flatten(json.loads(run.workload_key)[0]) | _flatten(json.loads(run.measure_key))
                    for run, _ in group}  # fmt: skip
        names: list[str] = []
        for name in dict.fromkeys(name for each in settings.values() for name in each):
            with_name = {fingerprint: (*key, settings[fingerprint].get(name)) for fingerprint, key in keys.items()}
            if len(set(with_name.values())) > len(set(keys.values())):
                keys, names = with_name, [*names, name]
        for fingerprint, each in settings.items():
            pairs = ((name.rpartition(".")[2], each[name]) for name in names if name in each)
            texts[fingerprint] = " ".join(f"{name}={value}" for name, value in pairs)
    return texts


def _flatten(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a config by their dotted keys, as texts without spaces."""
    texts = ((key, str(value).replace(" ", ""), value) for key, value in config_fingerprint.flatten(tree))
    return {key: text.lower() if isinstance(value, bool) else text for key, text, value in texts}


def name_curves(keys: Sequence[Key], columns: Sequence[str] = CURVE_COLUMNS) -> dict[Key, str]:
    """Return names for keys of these columns: the strategy, and each setting of which one strategy comes with several
    values; INPUT_COLUMNS if any two keys differ in them, since such strategies are not compared like for like."""
    settings = {key: dict(zip(columns, key, strict=True)) for key in keys}
    everywhere = [name for name in INPUT_COLUMNS if len({curve.get(name) for curve in settings.values()}) > 1]
    names = {}
    for key, curve in settings.items():
        same_strategy = [other for other in settings.values() if other["strategy"] == curve["strategy"]]
        parts = [str(curve["strategy"])]
        for name in KEY_VALUE_COLUMNS:
            common = set.intersection(*(set((other.get(name) or "").split()) for other in same_strategy))
            parts += [text for text in (curve.get(name) or "").split() if text not in common]
        for name in (*INPUT_COLUMNS, *SETTING_COLUMNS):
            if name in everywhere or len({other.get(name) for other in same_strategy}) > 1:
                parts += [] if curve[name] is None else [f"{name}={str(curve[name]).replace(' ', ',')}"]
        names[key] = " ".join(parts)
    return names


def global_batch_key(row: Mapping[str, Any], group: Mapping[str, str]) -> Key:
    """Return what a row on N devices shares with one on a single device with N times the batch: the workload, the
    global batch and the optimizer's settings. `group` is that of the row's curve."""
    shared = (text for name, text in group.items() if name != "batch")
    return (*shared, row["global_batch"], row.get("learning_rate"), *(row.get(name) for name in OPTIMIZER_COLUMNS))


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
