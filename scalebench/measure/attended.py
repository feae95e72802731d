"""What the nodes of a run told of themselves, as a part of its record. Layer 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from scalebench.machine import Machine
from scalebench.machine_kind import Kind, kind_of
from scalebench.measure import clocks
from scalebench.measure.node import NodeFacts, attended_by_nodes
from scalebench.process import wait_until
from scalebench.records import from_dict, read_json
from scalebench.results import Result
from scalebench.run_folder import node_report_path
from scalebench.spec import RunSpec

Told = list[NodeFacts | None]  # by node; None where one left nothing
WELL_S = 15.0  # that the nodes of a run that went well may take to write their series, and the file system to show it
LATE_S = 2.0  # those of another, whose keepers may have been killed


def read_nodes(spec: RunSpec, folder: Path) -> Told:
    """Empty where the nodes of this run do not tell of themselves."""
    return [_read(folder, node) for node in range(spec.nodes)] if attended_by_nodes(spec) else []


def wait(spec: RunSpec, folder: Path, went_well: bool) -> Told:
    """What they told when all of them were done, or when they have had their time."""
    told = read_nodes(spec, folder)

    def done() -> bool:
        for node, facts in enumerate(told):
            if facts is None or not facts.over:
                told[node] = _read(folder, node)
        return all(facts is not None and facts.over for facts in told)

    wait_until(done, WELL_S if went_well else LATE_S)
    return told


def _read(folder: Path, node: int) -> NodeFacts | None:
    try:
        return from_dict(NodeFacts, read_json(node_report_path(folder, node)))
    except (OSError, ValueError):
        return None


def oom_killed(told: Told) -> bool:
    """Whether the kernel of any node killed a process for memory while the run was there."""
    return any(node.oom_killed for node in told if node is not None)


def tell(result: Result, told: Told) -> None:
    """Put the machines of the nodes, and what is to be known of them and their clocks, into `result`.

    Its machine is that of node 0 where that told of itself; else it stays what it is.
    """
    if told and told[0] is not None:
        result.machine = told[0].machine
    others = [node.machine for node in told[1:] if node is not None]
    result.other_machines = others if others and len(others) == len(told) - 1 else None
    result.flags += flags(result, [node.machine for node in told if node is not None])


def flags(result: Result, machines: Sequence[Machine]) -> list[str]:
    found = {
        "unequal_nodes": len({_type(machine) for machine in machines}) > 1,
        "clocks_differ": clocks.apart(result.ranks),
    }
    return [name for name, there in found.items() if there]


def _type(machine: Machine) -> str:
    """What a node is, without what a job may get more or less of on one node than on another: cores, GPUs, memory."""
    kind: Kind = kind_of(machine)
    physical = None if machine.cpus_physical is None else float(machine.cpus_physical)
    return str(dataclasses.replace(kind, cores=physical, gpus=dict.fromkeys(kind.gpus, 1)))
