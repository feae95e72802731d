"""The facts of a run as dotted keys: those that rows must share to be compared, and those that may differ; the labels
of compared rows, the values of the compared key, and what else differs between the rows of a pair."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from scalebench.analysis.identity import BOUND_FACTS, LEFT_OUT, is_under
from scalebench.core import config_fingerprint
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.errors import unknown_name_message
from scalebench.core.result import Result

Facts = dict[str, str]  # values as text, so that one meaning has one value
NONE = "none"  # what is absent, null or empty

MACHINE_FIELDS = (
    "hostname cpus cpu_quota cpus_physical memory_bytes memory_limit_bytes driver_version cuda_driver_version os "
    "kernel python git_commit container mpi cpu_governors cpu_max_mhz smt cpu_model"
).split()
GPU_FIELDS = (
    "memory_bytes power_limit_w sm_clock_max_mhz mem_clock_max_mhz sm_clock_application_mhz mem_clock_application_mhz "
    "mig ecc persistence pcie_generation_max pcie_width"
).split()
NAMED_GROUPS = ("model", "dataset", "strategy", "hardware")  # groups with a key `name`
FIRST_KEYS = ("model.name", "dataset.name", "hardware.name", "scaling", "strategy.name", "gpus")  # of a label
ALWAYS_SHOWN_KEYS = ("strategy.name", "gpus")


@dataclass(frozen=True)
class RunFacts:
    """`identity`: what rows must share; `other`: what may differ; both by dotted key."""

    identity: Facts
    other: Facts


def collect_facts(result: Result) -> RunFacts:
    """Return the facts of one record, with the default of each option of its strategy that it does not set."""
    scale, machine, workload = result.scale, result.machine, result.workload
    settings = flatten(result.spec)
    identity = {key: value for key, value in settings.items() if not is_under(key, LEFT_OUT["pair"])}
    for key, value in flatten({"strategy": {"options": strategy_option_defaults(scale.strategy)}}).items():
        identity.setdefault(key, value)
    identity |= {"gpus": scale.gpus, "nodes": scale.nodes, "device": scale.device, "scaling": scale.scaling}
    if scale.scaling == "strong":  # one global batch, however it was configured
        identity |= {"train.global_batch": scale.global_batch, "train.batch_per_device": None}
    identity["machine.gpus"] = ", ".join(sorted(gpu.name or "" for gpu in machine.gpus)) or None
    if scale.device == "cpu":
        identity["machine.cpu_model"] = machine.cpu_model
    other = {key: value for key, value in settings.items()
             if is_under(key, LEFT_OUT["pair"]) and not is_under(key, LEFT_OUT["hidden"])}  # fmt: skip

    def distinct(values: Iterable[Any]) -> Any:
        present = list(dict.fromkeys(value for value in values if value is not None))
        return canonical_value(present[0] if len(present) == 1 else present)

    # The machine and its software at the time of the run, and what the run really used, which may differ from what was
    # requested.
    other |= {f"machine.{name}": canonical_value(getattr(machine, name)) for name in MACHINE_FIELDS}
    other |= {f"machine.gpu.{name}": distinct(getattr(gpu, name) for gpu in machine.gpus) for name in GPU_FIELDS}
    other |= {f"versions.{name}": version for name, version in machine.versions.items()}
    other |= {f"environment.{name}": value for name, value in machine.environment.items()}
    other |= {name: getattr(scale, name) for name in ("framework_version", "backend_used")}
    used = ("precision_used", "data_format_used", "compiler_used", "model_params")
    other |= {name: getattr(workload, name) for name in used}
    other["threads"] = distinct(rank.threads for rank in result.ranks)
    other["throttle_reasons"] = ", ".join(sorted(result.monitor.throttle_reasons or [])) or None
    return RunFacts(*({key: format_fact(value) for key, value in each.items()} for each in (identity, other)))


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Return nested mappings with dotted keys; an empty one leaves nothing."""
    return {key: canonical_value(value) for key, value in config_fingerprint.flatten(tree) if value != {}}


def canonical_value(value: Any) -> str | int | float | None:
    """Return one value for one meaning: 1.0 is 1, and lists are their text."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return json.dumps(value) if value else None


def format_fact(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def pairing_key(facts: Facts, without: Sequence[str] = ()) -> frozenset[tuple[str, str]]:
    """Return what both rows of a pair share: all facts but those `without`, and but those without a value."""
    return frozenset((key, value) for key, value in facts.items() if value != NONE and not is_under(key, without))


def find_differing_keys(first: Facts, *others: Facts) -> list[str]:
    names = dict.fromkeys(chain(first, *others))
    return [name for name in names if any(first.get(name, NONE) != each.get(name, NONE) for each in others)]


def describe_differences(a: Facts, b: Facts, keys: Sequence[str]) -> str:
    """Return `train.batch_per_device: 10 and 20`, for the first three of `keys`."""
    texts = [f"{key}: {a.get(key, NONE)} and {b.get(key, NONE)}" for key in keys[:3]]
    return "; ".join(texts) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def keys_bound_to(key: str) -> tuple[str, ...]:
    """Return the key and those that change together with it."""
    return (key, *BOUND_FACTS.get(key, ()))


def main_key(key: str) -> str:
    """Return `hardware.name` for `hardware`, and other keys as they are."""
    return f"{key}.name" if key in NAMED_GROUPS else key


def explain_unknown_key(key: str, valid_names: Iterable[str]) -> str | None:
    """Return why a key is neither a dotted key nor a group of them; None if it is."""
    names = set(valid_names)
    names |= {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    if key in names:
        return None
    # People remember only the last part: precision for train.precision.
    ends = sorted(name for name in names if name.endswith(f".{key}"))
    return f"no key '{key}'; did you mean '{ends[0]}'?" if ends else unknown_name_message("key", key, names)


def choose_label_keys(rows: Sequence[Facts], without: Sequence[str]) -> list[str]:
    """Return the fewest keys that distinguish all rows, always with strategy and number of devices.

    Keys `without` are compared or ignored, and are part of no label.
    """
    keys: list[str] = []
    labels: list[tuple[str, ...]] = [() for _ in rows]
    for name in dict.fromkeys([*FIRST_KEYS, *(find_differing_keys(*rows) if rows else ())]):
        finer = [(*label, facts.get(name, NONE)) for label, facts in zip(labels, rows, strict=True)]
        is_useful = name in ALWAYS_SHOWN_KEYS or len(set(finer)) > len(set(labels))
        if is_useful and not is_under(name, without):
            keys.append(name)
            labels = finer
    return keys


def make_label(facts: Facts, keys: Sequence[str]) -> dict[str, str]:
    """Return the values of keys by their short names: `strategy` for `strategy.name`, else the last part."""
    short = (key.removesuffix(".name").rpartition(".")[2] for key in keys)
    return {name: facts.get(key, NONE) for name, key in zip(short, keys, strict=True)}


def find_closest(facts: Facts, others: Sequence[Facts], without: Sequence[str]) -> tuple[Facts, list[str]]:
    """Return the facts that differ in the fewest keys, and these keys; of another strategy or model only its name."""

    def list_keys(other: Facts) -> list[str]:
        return [key for key in find_differing_keys(facts, other) if not is_under(key, without)]

    closest = min(others, key=lambda other: len(list_keys(other)), default={})
    keys = list_keys(closest)
    named = [group for group in NAMED_GROUPS if f"{group}.name" in keys]
    return closest, [key for key in keys if not is_under(key, named) or key.endswith(".name")]
