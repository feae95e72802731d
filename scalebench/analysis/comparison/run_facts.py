"""What a run was, as dotted keys: those that rows must share to be compared, and those that may differ and are told.
Layer 1."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.identity import BOUND_FACTS, HIDDEN_FACTS, IGNORED_FACTS, is_under
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.errors import unknown_name_message
from scalebench.core.machine.machine import Machine
from scalebench.core.result import Result
from scalebench.core.spec import Config

Value = str | int | float | bool | None
Facts = dict[str, Value]

MACHINE = (
    "hostname cpus cpu_quota cpus_physical memory_bytes memory_limit_bytes driver_version cuda_driver_version os "
    "kernel python git_commit container mpi cpu_governors cpu_max_mhz smt"
).split()
GPU = (
    "memory_bytes power_limit_w sm_clock_max_mhz mem_clock_max_mhz sm_clock_application_mhz mem_clock_application_mhz "
    "mig ecc persistence pcie_generation_max pcie_width"
).split()
NAMED = ("model", "dataset", "strategy", "hardware")  # groups, told by their name


@dataclass(frozen=True)
class Described:
    """`identity`: what rows must share; `free`: what may differ; both by dotted key, None: not there or not known."""

    identity: Facts
    free: Facts


def describe(result: Result) -> Described:
    """The facts of one record. Settings that it does not know yet have the values that were fixed before they came."""
    scale, machine = result.scale, result.machine
    told = flat(result.spec)
    identity = {key: value for key, value in told.items() if not is_under(key, IGNORED_FACTS)}
    for key, value in _defaults(scale.strategy).items():
        identity.setdefault(key, value)
    identity |= {"gpus": scale.gpus, "nodes": scale.nodes, "device": scale.device, "scaling": scale.scaling}
    if scale.scaling == "strong":  # one global batch, however it was asked for
        identity |= {"train.global_batch": scale.global_batch, "train.batch_per_device": None}
    identity["machine.gpus"] = told_list(sorted(gpu.name or "" for gpu in machine.gpus))
    if scale.device == "cpu":
        identity["machine.cpu_model"] = machine.cpu_model
    free = {
        key: value for key, value in told.items() if is_under(key, IGNORED_FACTS) and not is_under(key, HIDDEN_FACTS)
    }
    return Described(identity, free | _surroundings(machine) | _used(result))


def _defaults(strategy: str) -> Facts:
    spine = {
        key: value for key, value in flat(dataclasses.asdict(Config())).items() if not is_under(key, IGNORED_FACTS)
    }
    spine = {key: value for key, value in spine.items() if value != "???"}
    return spine | flat({"strategy": {"options": strategy_option_defaults(strategy)}})


def _surroundings(machine: Machine) -> Facts:
    """The machine and its software, as they were at that time."""
    found: Facts = {f"machine.{name}": canonical(getattr(machine, name)) for name in MACHINE}
    found["machine.cpu_model"] = machine.cpu_model
    for name in GPU:
        found[f"machine.gpu.{name}"] = _distinct(getattr(gpu, name) for gpu in machine.gpus)
    found |= {f"versions.{name}": version for name, version in machine.versions.items()}
    return found | {f"environment.{name}": value for name, value in machine.environment.items()}


def _used(result: Result) -> Facts:
    """What was not asked for but came: what was requested is not what ran."""
    scale, workload = result.scale, result.workload
    return {
        "framework_version": scale.framework_version,
        "backend_used": scale.backend_used,
        "precision_used": workload.precision_used,
        "data_format_used": workload.data_format_used,
        "compiler_used": workload.compiler_used,
        "model_params": workload.model_params,
        "threads": _distinct(rank.threads for rank in result.ranks),
        "throttle_reasons": told_list(sorted(result.monitor.throttle_reasons or [])),
    }


def _distinct(values: Iterable[Any]) -> Value:
    known = list(dict.fromkeys(value for value in values if value is not None))
    return None if not known else canonical(known[0] if len(known) == 1 else known)


def told_list(words: list[str]) -> str | None:
    return ", ".join(words) or None


def flat(tree: dict[str, Any], above: str = "") -> Facts:
    """Nested mappings as dotted keys; an empty one leaves nothing."""
    found: Facts = {}
    for name, value in tree.items():
        key = f"{above}{name}"
        found |= flat(value, f"{key}.") if isinstance(value, dict) else {key: canonical(value)}
    return found


def canonical(value: Any) -> Value:
    """One value for one meaning: 1.0 is 1, and lists are their text."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return json.dumps(value) if value else None


def with_bound(key: str) -> tuple[str, ...]:
    """The key and what goes with it."""
    return (key, *BOUND_FACTS.get(key, ()))


def main_key(key: str) -> str:
    """`hardware` is told by `hardware.name`."""
    return f"{key}.name" if key in NAMED else key


def check_key(key: str, known: Iterable[str]) -> str | None:
    """Why there is no such key among the dotted ones and the groups that they lie in; None for one that is."""
    names = set(known)
    names |= {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    if key in names:
        return None
    # A last part alone is what people remember: precision is train.precision.
    ends = sorted(name for name in names if name.endswith(f".{key}"))
    return f"no key '{key}'; did you mean '{ends[0]}'?" if ends else unknown_name_message("key", key, names)
