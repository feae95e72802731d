"""The hardware of a machine in words: a row for each fact, and how its GPUs are connected. Layer 3.

`scalebench doctor` tells so of this machine, a report of those that its runs ran on.

What is to know of the machine that a run ran on, fact by fact: to tell machines, and to compare them. Layer 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scalebench.core.machine import gpus, machine
from scalebench.core.machine.gpus import Gpu
from scalebench.core.machine.machine import Machine
from scalebench.core.result import Result

GIB = 2**30
MOST_PAIRS = 8  # told of each connection; a machine with 16 GPUs has 120

Row = tuple[str, str]


def facts(here: Machine) -> list[Row]:
    """What there is, what limits it, and what is set otherwise than usual."""
    found = [("machine", machine.describe_machine(here)), *_processors(here), *_numa(here), *_limits(here)]
    found += [(f"GPU {gpu.index}", _gpu(gpu)) for gpu in here.gpus]
    if here.driver_version is not None:
        found.append(("driver", f"{here.driver_version}, CUDA up to {here.cuda_driver_version or 'unknown'}"))
    return found


def links(here: Machine) -> list[list[str]] | None:
    """The matrix of connections, in the words of `nvidia-smi topo -m`, with the pairs that have no peer access."""
    if here.topology is None:
        return None
    return [[_link(here, a, b, word) for b, word in enumerate(words)] for a, words in enumerate(here.topology)]


def pairs(here: Machine) -> list[Row]:
    """Pairs of GPUs by their connection."""
    found = []
    for word, alike in _by_link(here).items():
        told = " ".join(f"{a}-{b}" for a, b in alike[:MOST_PAIRS])
        found.append((f"{word} pairs", told + (f" and {len(alike) - MOST_PAIRS} more" if alike[MOST_PAIRS:] else "")))
    return found


def comparing(here: Machine) -> list[Row]:
    """The command that compares one pair of each connection."""
    by_link = _by_link(here)
    if not by_link:
        return []
    visible = here.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # numbers of devices are not those of GPUs then
        return [("", f"CUDA_VISIBLE_DEVICES={visible}: its first one is device 0 of hardware.device_ids")]
    values = ",".join(f"[{alike[0][0]},{alike[0][1]}]" for alike in by_link.values())
    far = " hardware.bind=numa,far" if len(here.numa or []) > 1 else ""
    return [("compare them", f"python -m scalebench --multirun 'hardware.device_ids={values}'{far}")]


def numbers(found: Sequence[int]) -> str:
    """[0, 1, 2, 8] -> '0-2,8'."""
    parts: list[list[int]] = []
    for number in sorted(found):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _processors(here: Machine) -> list[Row]:
    words = [
        here.cpu_model or "" if here.gpus else "",  # else it stands in the line above
        f"{here.cpu_sockets} sockets" if (here.cpu_sockets or 0) > 1 else "",
        f"CPUs {numbers(here.cpus_allowed)}" if here.cpus_allowed else "",
        "" if here.smt is None else f"{'two or more threads' if here.smt else 'one thread'} a core",
        "governor " + " and ".join(here.cpu_governors) if here.cpu_governors else "",
        f"up to {here.cpu_max_mhz:.0f} MHz" if here.cpu_max_mhz is not None else "",
    ]
    return _row("processors", words)


def _numa(here: Machine) -> list[Row]:
    """A row for each node, where there are several."""
    found = []
    for node in here.numa or [] if len(here.numa or []) > 1 else []:
        near = [gpu.index for gpu in here.gpus if gpu.numa_node == node.node]
        usable = sorted(set(node.cpus) & set(here.cpus_allowed or node.cpus))
        words = [
            f"CPUs {numbers(usable)}" if usable else "no CPU of ours",
            f"{node.memory_bytes / GIB:.0f} GiB" if node.memory_bytes is not None else "",
            f"GPU {numbers(near)}" if near else "",
        ]
        found += _row(f"NUMA node {node.node}", words)
    return found


def _limits(here: Machine) -> list[Row]:
    words = [
        f"{here.cpu_quota:g} CPUs' worth of time" if here.cpu_quota is not None else "",
        f"{here.memory_limit_bytes / GIB:.1f} GiB of memory" if here.memory_limit_bytes is not None else "",
    ]
    return _row("limits", words)


def _gpu(gpu: Gpu) -> str:
    usual = gpu.power_limit_default_w
    instead = f" instead of {usual:.0f} W" if usual is not None and usual != gpu.power_limit_w else ""
    pcie = [gpu.pcie_generation_max, gpu.pcie_width_max]
    now = [gpu.pcie_generation, gpu.pcie_width]
    slower = f" (now {now[0]} x{now[1]})" if None not in now and now != pcie else ""
    words = [
        gpu.name or "unknown GPU",
        f"{gpu.memory_bytes / GIB:.0f} GiB" if gpu.memory_bytes is not None else "",
        f"{gpu.power_limit_w:.0f} W{instead}" if gpu.power_limit_w is not None else "",
        f"NUMA node {gpu.numa_node}" if gpu.numa_node is not None else "",
        _clock("SM", gpu.sm_clock_max_mhz, gpu.sm_clock_application_mhz, gpu.sm_clock_default_mhz),
        _clock("memory", gpu.mem_clock_max_mhz, gpu.mem_clock_application_mhz, gpu.mem_clock_default_mhz),
        f"PCIe {pcie[0]} x{pcie[1]}{slower}" if None not in pcie else "",
        "MIG" if gpu.mig else "",
        "no ECC" if gpu.ecc is False else "",
        "no persistence mode" if gpu.persistence is False else "",
        f"compute mode {gpu.compute_mode}" if gpu.compute_mode not in (None, "default") else "",
    ]
    return ", ".join(word for word in words if word)


def _clock(name: str, most: int | None, chosen: int | None, usual: int | None) -> str:
    held = f" (set to {chosen})" if chosen is not None and chosen != usual else ""
    return f"{name} up to {most} MHz{held}" if most is not None else ""


def _no_access(here: Machine, a: int, b: int) -> str | None:
    """Why GPU a may not read or write in the memory of GPU b; None where it may, or nobody knows."""
    kinds = [(here.peer_access or {}).get(kind) for kind in ("read", "write")]
    # A record may be anybody's: a matrix that is too small says nothing.
    words = [matrix[a][b] for matrix in kinds if matrix is not None and a < len(matrix) and b < len(matrix[a])]
    return next((word for word in words if word not in ("OK", "X")), None)


def _link(here: Machine, a: int, b: int, word: str) -> str:
    no = _no_access(here, a, b)
    return word if no is None else f"{word}, no peer access ({no})"


def _by_link(here: Machine) -> dict[str, list[tuple[int, int]]]:
    return gpus.pairs_by_link(here.topology) if here.topology is not None else {}


def _row(name: str, words: Sequence[str]) -> list[Row]:
    text = ", ".join(word for word in words if word)
    return [(name, text)] if text else []


Facts = dict[str, str]
NOT_SET = "not set"
UNKNOWN = "unknown"


def hardware_facts(machine: Machine) -> Facts:
    """What a machine keeps from one run to the next: processors, memory, GPUs with clocks and limits, NUMA."""
    # How fast an idle link happened to be is no difference between two runs.
    gpus = [dataclasses.replace(gpu, pcie_generation=None, pcie_width=None) for gpu in machine.gpus]
    steady = dataclasses.replace(machine, gpus=gpus)
    return dict([*facts(steady), *pairs(steady)])


def software_facts(result: Result) -> Facts:
    """System, versions and commit; what the frameworks bring themselves (CUDA, cuDNN, NCCL) is told with their name."""
    here = result.machine
    found = {"system": here.os, "Python": here.python, "git commit": here.git_commit or UNKNOWN}
    found |= {"container": here.container or "none", "MPI": here.mpi or "none"}
    found |= {f"package {name}": version for name, version in here.versions.items()}
    framework = result.scale.framework
    own = result.ranks[0].versions if result.ranks else {}
    return found | {f"{name}, of {framework}": version for name, version in own.items() if name != framework}


def differences(of_runs: list[tuple[str, Result]]) -> dict[str, dict[str, list[str]]]:
    """fact -> value -> names of the runs that have it; only facts of which there are several values.

    A package counts where it is there: frameworks bring their own. A variable that is not set is a value, as is a GPU
    that another machine has not.
    """
    hardware_of = [(name, hardware_facts(result.machine)) for name, result in of_runs]
    software_of = [(name, software_facts(result)) for name, result in of_runs]
    variables_of = [(name, environment(result.machine)) for name, result in of_runs]
    return _several(hardware_of, "none") | _several(software_of, None) | _several(variables_of, NOT_SET)


def environment(machine: Machine) -> Facts:
    """Variables that matter to what was measured."""
    return {f"${name}": value for name, value in machine.environment.items()}


def _several(of_runs: list[tuple[str, Facts]], absent: str | None) -> dict[str, dict[str, list[str]]]:
    names = dict.fromkeys(fact for _, facts in of_runs for fact in facts)
    found: dict[str, dict[str, list[str]]] = {}
    for fact in names:
        values: dict[str, list[str]] = {}
        for run, facts in of_runs:
            value = facts.get(fact, absent)
            if value is not None:
                values.setdefault(value, []).append(run)
        if len(values) > 1:
            found[fact] = values
    return found
