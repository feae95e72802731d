"""Facts about each node of a run on several hosts: its machine, and a monitor beside its ranks.

The agent of a node (runner.node_agent) reports them, for the program that launched the run may be on none of the nodes.
Its monitor leaves a time series in the run's folder, which all nodes see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.core.machine import machine
from scalebench.core.machine.machine import Machine, classify_machine
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import node_report_path, read_rank_file
from scalebench.core.spec import RunSpec
from scalebench.measure import clock_sync
from scalebench.measure.monitor.monitor_process import MonitorProcess

FACTS_LIMIT_S = 10.0  # for facts that are still missing at the end of the run, where a driver is slow


@dataclass
class NodeReport:
    """What an agent reports at the start, and again at the end with the facts that are known only then; the program
    writes it as machine<node>.json."""

    node: int
    rank: int  # the first that the agent started
    machine: Machine
    oom_killed: bool | None = None  # the kernel killed a process for memory during the run; null: unknown
    monitor_reason: str | None = None  # why there is no series, or what is missing from it


NodeReports = list[NodeReport | None]  # by node; None where one left nothing


@dataclass(frozen=True)
class MachinesPart:
    """The machines of a run, as a part of its record."""

    machine: Machine = field(default_factory=lambda: machine.detect_machine())  # of node 0
    others: list[Machine] | None = None  # of the other nodes; None where one is missing, or there are none
    flags: list[str] = field(default_factory=list)


def has_node_reports(spec: RunSpec) -> bool:
    """Return whether the nodes of this run record their facts themselves; otherwise all ranks are on the host of the
    program that launches them, which records its own."""
    hardware = spec.config.hardware
    return hardware.scheduler != "none" or bool(hardware.hosts) or spec.config.strategy.launcher == "by_hand"


@contextlib.contextmanager
def record_node(
    spec: RunSpec, folder: Path, rank: int, variables: Mapping[str, str], send: Callable[[NodeReport], None]
) -> Iterator[MonitorProcess | None]:
    """Report the facts of a node while its ranks run, if `rank` is the first of them; yields the monitor of the node
    then. `variables` are the rank's, which the record has.

    The node is examined beside the ranks' start, which takes far longer. They never wait for it, and whatever goes
    wrong is a reason in the record and no failed run.
    """
    place = spec.places[rank]
    if not has_node_reports(spec) or place.local_rank != 0:
        yield None
        return
    reports: list[NodeReport] = []

    def report_start() -> None:
        with contextlib.suppress(Exception):
            facts = NodeReport(place.node, rank, machine.detect_machine(variables))
            send(facts)
            reports.append(facts)

    kills_before = machine.oom_kills()
    with MonitorProcess(spec, folder, node=place.node) as monitor:
        thread = threading.Thread(target=report_start, daemon=True)
        thread.start()
        yield monitor
    thread.join(FACTS_LIMIT_S)
    kills = machine.oom_kills()
    oom_killed = None if kills is None or kills_before is None else kills > kills_before
    for facts in reports:
        send(dataclasses.replace(facts, oom_killed=oom_killed, monitor_reason=monitor.reason))


def read_reports(spec: RunSpec, folder: Path, run_id: str | None = None) -> NodeReports:
    """Return what each node reported in this run (None: in any run there); empty where the nodes do not report."""
    nodes = range(spec.nodes) if has_node_reports(spec) else ()
    return [read_rank_file(node_report_path(folder, node), NodeReport, run_id) for node in nodes]


def any_oom_kill(reports: NodeReports) -> bool:
    """Return whether the kernel of any node killed a process for memory during the run."""
    return any(report.oom_killed for report in reports if report is not None)


def make_machines_part(reports: NodeReports, ranks: Sequence[RankRecord]) -> MachinesPart:
    """Return the machines of the nodes; that of node 0 is this one where it did not report."""
    machines = [report.machine for report in reports if report is not None]
    others = [report.machine for report in reports[1:] if report is not None]
    all_others = others if others and len(others) == len(reports) - 1 else None
    of_node_0 = reports[0].machine if reports and reports[0] is not None else machine.detect_machine()
    # The type of a node, without the amounts that a job may get on it: cores, GPUs, memory.
    types = set()
    for each in machines:
        kind = classify_machine(each)
        cores = None if each.cpus_physical is None else float(each.cpus_physical)
        types.add(str(dataclasses.replace(kind, cores=cores, gpus=dict.fromkeys(kind.gpus, 1))))
    flags = {"unequal_nodes": len(types) > 1, "clocks_differ": clock_sync.clocks_differ(ranks)}
    return MachinesPart(of_node_0, all_others, [name for name, is_set in flags.items() if is_set])
