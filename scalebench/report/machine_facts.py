"""What is to know of the machine that a run ran on, fact by fact: to tell machines, and to compare them. Layer 3."""

from __future__ import annotations

import dataclasses

from scalebench.machine import Machine
from scalebench.report import hardware
from scalebench.results import Result

Facts = dict[str, str]
NOT_SET = "not set"
UNKNOWN = "unknown"


def hardware_facts(machine: Machine) -> Facts:
    """What a machine keeps from one run to the next: processors, memory, GPUs with clocks and limits, NUMA."""
    # How fast an idle link happened to be is no difference between two runs.
    gpus = [dataclasses.replace(gpu, pcie_generation=None, pcie_width=None) for gpu in machine.gpus]
    steady = dataclasses.replace(machine, gpus=gpus)
    return dict([*hardware.facts(steady), *hardware.pairs(steady)])


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
