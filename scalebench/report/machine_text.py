"""The hardware and software of a machine as text: a row for each fact, and how its GPUs are connected.

`scalebench doctor` shows this machine so, a report those of its runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scalebench.core.machine.gpus import Gpu, pairs_by_link
from scalebench.core.machine.machine import Machine, describe_machine
from scalebench.core.result import Result

GIB = 2**30
MAX_PAIRS = 8  # shown of each connection; a machine with 16 GPUs has 120
NOT_SET = "not set"
UNKNOWN = "unknown"

FactRow = tuple[str, str]
Facts = dict[str, str]


def list_facts(machine: Machine) -> list[FactRow]:
    """List the hardware, its limits, and settings that differ from the default; what is unknown is left out."""
    smt = {True: "two or more threads a core", False: "one thread a core", None: ""}[machine.smt]
    several_nodes = machine.numa if machine.numa and len(machine.numa) > 1 else []
    rows = {
        "machine": [describe_machine(machine)],
        "processors": [
            machine.cpu_model or "" if machine.gpus else "",  # otherwise the line above names it
            f"{machine.cpu_sockets} sockets" if (machine.cpu_sockets or 0) > 1 else "",
            f"CPUs {format_ranges(machine.cpus_allowed)}" if machine.cpus_allowed else "",
            smt,
            f"governor {' and '.join(machine.cpu_governors)}" if machine.cpu_governors else "",
            _fill("up to {:.0f} MHz", machine.cpu_max_mhz),
        ],
    }
    for node in several_nodes:
        near = [gpu.index for gpu in machine.gpus if gpu.numa_node == node.node]
        usable = sorted(set(node.cpus) & set(machine.cpus_allowed or node.cpus))
        rows[f"NUMA node {node.node}"] = [
            f"CPUs {format_ranges(usable)}" if usable else "no CPU for this process",
            _fill_gib("{:.0f} GiB", node.memory_bytes),
            f"GPU {format_ranges(near)}" if near else "",
        ]
    rows["limits"] = [
        _fill("{:g} CPUs' worth of time", machine.cpu_quota),
        _fill_gib("{:.1f} GiB of memory", machine.memory_limit_bytes),
    ]
    rows |= {f"GPU {gpu.index}": _list_gpu_facts(gpu) for gpu in machine.gpus}
    if machine.driver_version is not None:
        rows["driver"] = [machine.driver_version, f"CUDA up to {machine.cuda_driver_version or UNKNOWN}"]
    texts = {name: ", ".join(filter(None, parts)) for name, parts in rows.items()}
    return [(name, text) for name, text in texts.items() if text]


def _fill(template: str, figure: float | str | None) -> str:
    return "" if figure is None else template.format(figure)


def _fill_gib(template: str, size_bytes: float | None) -> str:
    return "" if size_bytes is None else template.format(size_bytes / GIB)


def _list_gpu_facts(gpu: Gpu) -> list[str]:
    default = gpu.power_limit_default_w
    instead = f" instead of {default:.0f} W" if default is not None and default != gpu.power_limit_w else ""
    pcie, now = (gpu.pcie_generation_max, gpu.pcie_width_max), (gpu.pcie_generation, gpu.pcie_width)
    slower = f" (now {now[0]} x{now[1]})" if None not in now and now != pcie else ""
    clocks = [
        ("SM", gpu.sm_clock_max_mhz, gpu.sm_clock_application_mhz, gpu.sm_clock_default_mhz),
        ("memory", gpu.mem_clock_max_mhz, gpu.mem_clock_application_mhz, gpu.mem_clock_default_mhz),
    ]
    return [
        gpu.name or "unknown GPU",
        _fill_gib("{:.0f} GiB", gpu.memory_bytes),
        _fill(f"{{:.0f}} W{instead}", gpu.power_limit_w),
        _fill("compute capability {}", gpu.compute_capability),
        _fill("NUMA node {}", gpu.numa_node),
        *(
            _fill(f"{name} up to {{}} MHz" + (f" (set to {set_to})" if set_to not in (None, default_mhz) else ""), most)
            for name, most, set_to, default_mhz in clocks
        ),
        f"PCIe {pcie[0]} x{pcie[1]}{slower}" if None not in pcie else "",
        "MIG" if gpu.mig else "",
        "no ECC" if gpu.ecc is False else "",
        "no persistence mode" if gpu.persistence is False else "",
        f"compute mode {gpu.compute_mode}" if gpu.compute_mode not in (None, "default") else "",
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
    for word, gpu_pairs in _group_by_link(machine).items():
        text = " ".join(f"{a}-{b}" for a, b in gpu_pairs[:MAX_PAIRS])
        more = f" and {len(gpu_pairs) - MAX_PAIRS} more" if gpu_pairs[MAX_PAIRS:] else ""
        rows.append((f"{word} pairs", text + more))
    return rows


def _group_by_link(machine: Machine) -> dict[str, list[tuple[int, int]]]:
    return pairs_by_link(machine.topology) if machine.topology is not None else {}


def suggest_comparison(machine: Machine) -> list[FactRow]:
    """Return the command that compares one pair of each connection."""
    by_link = _group_by_link(machine)
    if not by_link:
        return []
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # device numbers differ from GPU numbers then
        return [("", f"CUDA_VISIBLE_DEVICES={visible}: its first one is device 0 of hardware.device_ids")]
    values = ",".join(f"[{gpu_pairs[0][0]},{gpu_pairs[0][1]}]" for gpu_pairs in by_link.values())
    far = " hardware.bind=numa,far" if len(machine.numa or []) > 1 else ""
    return [("compare them", f"scalebench --multirun 'hardware.device_ids={values}'{far}")]


def format_ranges(numbers: Sequence[int]) -> str:
    """Return `0-2,8` for [0, 1, 2, 8]."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def list_hardware_facts(machine: Machine) -> Facts:
    """Return what a machine keeps between runs: processors, memory, GPUs with clocks and limits, NUMA."""
    # How fast an idle link happened to be is no difference between two runs.
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
    hardware = [(name, list_hardware_facts(result.machine)) for name, result in runs]
    software = [(name, list_software_facts(result)) for name, result in runs]
    variables = [(name, list_variables(result.machine)) for name, result in runs]
    return _group_values(hardware, "none") | _group_values(software, None) | _group_values(variables, NOT_SET)


def _group_values(runs: list[tuple[str, Facts]], absent: str | None) -> dict[str, dict[str, list[str]]]:
    """Group runs by the value of each fact that has several; `absent` is the value of a missing fact."""
    groups: dict[str, dict[str, list[str]]] = {}
    for fact in dict.fromkeys(fact for _, facts in runs for fact in facts):
        for run, facts in runs:
            value = facts.get(fact, absent)
            if value is not None:
                groups.setdefault(fact, {}).setdefault(value, []).append(run)
    return {fact: values for fact, values in groups.items() if len(values) > 1}
