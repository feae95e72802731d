"""The hardware and software of a machine as text: a row for each fact, and how its GPUs are connected.

`scalebench doctor` shows this machine so, a report those of its runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from scalebench.core.machine.gpus import Gpu, pairs_by_link
from scalebench.core.machine.machine import Machine, describe_machine
from scalebench.core.result import Result

GIB = 2**30
MAX_PAIRS = 8  # The most pairs that are listed for a connection; a machine with 16 GPUs has 120 pairs.
NOT_SET = "not set"
UNKNOWN = "unknown"

FactRow = tuple[str, str]
Facts = dict[str, str]
Part = tuple[Any, ...]  # A template, and the values that it takes.


def list_facts(machine: Machine) -> list[FactRow]:
    """List the hardware, its limits, and settings that differ from the default; what is unknown is left out."""
    rows: dict[str, list[Part]] = {
        "machine": [("{}", describe_machine(machine))],
        "processors": [
            ("{}", machine.cpu_model if machine.gpus else ""),  # Otherwise the line above names it.
            ("{} sockets", (machine.cpu_sockets or 0) > 1 and machine.cpu_sockets),
            ("CPUs {}", format_ranges(machine.cpus_allowed or [])),
            ("{}", {True: "two or more threads a core", False: "one thread a core", None: ""}[machine.smt]),
            ("governor {}", " and ".join(machine.cpu_governors or [])),
            ("up to {:.0f} MHz", machine.cpu_max_mhz),
        ],
    }
    for node in machine.numa if machine.numa and len(machine.numa) > 1 else []:
        near = [gpu.index for gpu in machine.gpus if gpu.numa_node == node.node]
        usable = set(node.cpus) & set(machine.cpus_allowed or node.cpus)
        rows[f"NUMA node {node.node}"] = [
            ("{}", f"CPUs {format_ranges(usable)}" if usable else "no CPU for this process"),
            ("{:.0f} GiB", _to_gib(node.memory_bytes)),
            ("GPU {}", format_ranges(near)),
        ]
    limit_gib = _to_gib(machine.memory_limit_bytes)
    rows["limits"] = [("{:g} CPUs' worth of time", machine.cpu_quota), ("{:.1f} GiB of memory", limit_gib)]
    rows |= {f"GPU {gpu.index}": _list_gpu_facts(gpu) for gpu in machine.gpus}
    if machine.driver_version is not None:
        rows["driver"] = [("{}, CUDA up to {}", machine.driver_version, machine.cuda_driver_version or UNKNOWN)]
    texts = []
    for name, parts in rows.items():
        filled = [template.format(*values) for template, *values in parts
                  if not any(value is None or value is False or value == "" for value in values)]  # fmt: skip
        texts += [(name, ", ".join(filled))] if filled else []
    return texts


def _to_gib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _list_gpu_facts(gpu: Gpu) -> list[Part]:
    default = gpu.power_limit_default_w
    instead = f" instead of {default:.0f} W" if default is not None and default != gpu.power_limit_w else ""
    pcie, now = (gpu.pcie_generation_max, gpu.pcie_width_max), (gpu.pcie_generation, gpu.pcie_width)
    slower = f" (now {now[0]} x{now[1]})" if None not in now and now != pcie else ""
    set_sm, set_mem = (
        f" (set to {set_to})" if set_to not in (None, default_mhz) else ""
        for set_to, default_mhz in (
            (gpu.sm_clock_application_mhz, gpu.sm_clock_default_mhz),
            (gpu.mem_clock_application_mhz, gpu.mem_clock_default_mhz),
        )
    )
    return [
        ("{}", gpu.name or "unknown GPU"),
        ("{:.0f} GiB", _to_gib(gpu.memory_bytes)),
        (f"{{:.0f}} W{instead}", gpu.power_limit_w),
        ("compute capability {}", gpu.compute_capability),
        ("NUMA node {}", gpu.numa_node),
        (f"SM up to {{}} MHz{set_sm}", gpu.sm_clock_max_mhz),
        (f"memory up to {{}} MHz{set_mem}", gpu.mem_clock_max_mhz),
        (f"PCIe {{}} x{{}}{slower}", *pcie),
        ("MIG", gpu.mig),
        ("no ECC", gpu.ecc is False),
        ("no persistence mode", gpu.persistence is False),
        ("compute mode {}", gpu.compute_mode != "default" and gpu.compute_mode),
    ]


def make_link_matrix(machine: Machine) -> list[list[str]] | None:
    """Return the matrix of connections in the terms of `nvidia-smi topo -m`, with pairs that lack peer access."""
    if machine.topology is None:
        return None
    access = [(machine.peer_access or {}).get(kind) or [] for kind in ("read", "write")]

    def describe_link(a: int, b: int, word: str) -> str:
        # A record may come from anybody: a matrix that is too small is ignored.
        words = [matrix[a][b] for matrix in access if a < len(matrix) and b < len(matrix[a])]
        problem = next((each for each in words if each not in ("OK", "X")), None)
        return word if problem is None else f"{word}, no peer access ({problem})"

    return [[describe_link(a, b, word) for b, word in enumerate(words)] for a, words in enumerate(machine.topology)]


def list_gpu_pairs(machine: Machine) -> list[FactRow]:
    """List the pairs of GPUs by their connection."""
    rows = []
    for word, gpu_pairs in pairs_by_link(machine.topology or []).items():
        text = " ".join(f"{a}-{b}" for a, b in gpu_pairs[:MAX_PAIRS])
        more = f" and {len(gpu_pairs) - MAX_PAIRS} more" if gpu_pairs[MAX_PAIRS:] else ""
        rows.append((f"{word} pairs", text + more))
    return rows


def suggest_comparison(machine: Machine) -> list[FactRow]:
    """Return the command that compares one pair of each connection."""
    first_pairs = [gpu_pairs[0] for gpu_pairs in pairs_by_link(machine.topology or []).values()]
    if not first_pairs:
        return []
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # Then device numbers differ from GPU numbers.
        return [("", f"CUDA_VISIBLE_DEVICES={visible}: its first one is device 0 of hardware.device_ids")]
    values = ",".join(f"[{a},{b}]" for a, b in first_pairs)
    far = " hardware.bind=numa,far" if len(machine.numa or []) > 1 else ""
    return [("compare them", f"scalebench --multirun 'hardware.device_ids={values}'{far}")]


def format_ranges(numbers: Iterable[int]) -> str:
    """Return `0-2,8` for [0, 1, 2, 8]."""
    # Numbers that follow each other are as far from their places.
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0][1]}-{run[-1][1]}" if run[1:] else str(run[0][1]) for run in runs)


def list_hardware_facts(machine: Machine) -> Facts:
    """Return what a machine keeps between runs: processors, memory, GPUs with clocks and limits, NUMA."""
    # How fast an idle link happened to be is not a difference between two runs.
    gpus = [dataclasses.replace(gpu, pcie_generation=None, pcie_width=None) for gpu in machine.gpus]
    steady = dataclasses.replace(machine, gpus=gpus)
    return dict([*list_facts(steady), *list_gpu_pairs(steady)])


def list_software_facts(result: Result) -> Facts:
    """Return system, versions and commit; what a framework brings itself (CUDA, cuDNN, NCCL) has its name."""
    machine = result.machine
    facts = {"system": machine.os, "Python": machine.python, "git commit": machine.git_commit or UNKNOWN}
    facts |= {"container": machine.container or "none", "MPI": machine.mpi or "none"}
    facts |= {f"package {name}": version for name, version in machine.versions.items()}
    framework = result.scale.framework
    bundled = result.ranks[0].versions if result.ranks else {}
    return facts | {f"{name}, of {framework}": version for name, version in bundled.items() if name != framework}


def list_variables(machine: Machine) -> Facts:
    """Return the environment variables that affect measurements."""
    return {f"${name}": value for name, value in machine.environment.items()}


def find_differences(runs: list[tuple[str, Result]]) -> dict[str, dict[str, list[str]]]:
    """Return the facts with several values: fact -> value -> names of the runs that have it.

    A package counts only where it is installed, since frameworks bring their own. An unset variable is a value, as is
    a GPU that another machine lacks.
    """
    kinds: list[tuple[list[Facts], str | None]] = [
        ([list_hardware_facts(result.machine) for _, result in runs], "none"),
        ([list_software_facts(result) for _, result in runs], None),
        ([list_variables(result.machine) for _, result in runs], NOT_SET),
    ]
    groups: dict[str, dict[str, list[str]]] = {}
    for facts_of_runs, absent in kinds:  # `absent` is what a missing fact counts as.
        for fact in dict.fromkeys(fact for facts in facts_of_runs for fact in facts):
            for (name, _), facts in zip(runs, facts_of_runs, strict=True):
                if (value := facts.get(fact, absent)) is not None:
                    groups.setdefault(fact, {}).setdefault(value, []).append(name)
    return {fact: values for fact, values in groups.items() if len(values) > 1}
