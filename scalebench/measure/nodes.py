"""Facts about each node of a run on several hosts: its machine, and a monitor beside its ranks.

The agent of a node's first rank (launchers.rank_agent) records them, for the program that launched the run may be on
none of the nodes. The agent leaves machine<node>.json and a time series in the run's folder, which all nodes see; the
program reads them when the run is over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.core.machine import gpus, machine
from scalebench.core.machine.machine import Machine, MachineClass, classify_machine
from scalebench.core.process import wait_until
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import node_report_path, read_rank_file, write_rank_file
from scalebench.core.spec import RunSpec
from scalebench.measure import clock_sync
from scalebench.measure.monitor.monitor_process import MonitorProcess

FACTS_LIMIT_S = 10.0  # for facts that are still missing at the end of the run, where a driver is slow
REPORT_LIMIT_S = 15.0  # for the nodes of a run that went well to write their series, and for the file system to show it
FAILED_REPORT_LIMIT_S = 2.0  # the same for a run that failed, whose agents may have been killed


@dataclass
class NodeReport:
    """machine<node>.json: written at the start, and again at the end with the facts that are known only then."""

    node: int
    rank: int  # whose agent writes this
    machine: Machine
    visible_gpus: list[int | None]  # NVML's numbers of the devices that ranks here call 0, 1, ...; null: part of a GPU
    over: bool = False
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
    return hardware.scheduler == "slurm" or bool(hardware.hosts) or spec.config.strategy.launcher == "by_hand"


@contextlib.contextmanager
def record_node(
    spec: RunSpec, folder: Path, node: int, rank: int, variables: Mapping[str, str]
) -> Iterator[MonitorProcess | None]:
    """Record the facts of `node` while the worker of `rank` runs, if `rank` is the first on its node; yields the
    monitor of the node then. `variables` are the worker's, which the record has.

    To be entered before the worker starts, in the thread that starts it. The worker never waits for it, and whatever
    goes wrong is a reason in the record and no failed run.
    """
    if not has_node_reports(spec) or spec.places[rank].local_rank != 0:
        yield None
        return
    kills_before = machine.oom_kills()
    with MonitorProcess(spec, folder, node=node) as monitor:
        path = node_report_path(folder, node)
        writer = _ReportWriter(
            lambda: NodeReport(node, rank, machine.detect_machine(variables), gpus.visible_gpus()), path
        )
        yield monitor
    kills = machine.oom_kills()
    oom_killed = None if kills is None or kills_before is None else kills > kills_before
    writer.end(oom_killed, monitor.reason)


class _ReportWriter:
    """Detects the machine while the worker starts, which takes far longer."""

    def __init__(self, make: Callable[[], NodeReport], path: Path) -> None:
        self._make, self._path = make, path
        self._report: NodeReport | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # left to the thread that waits for the worker
        with contextlib.suppress(Exception):
            self._report = self._make()
            write_rank_file(self._path, self._report)

    def end(self, oom_killed: bool | None, monitor_reason: str | None) -> None:
        self._thread.join(FACTS_LIMIT_S)
        if self._report is not None and not self._thread.is_alive():
            report = dataclasses.replace(self._report, over=True, oom_killed=oom_killed, monitor_reason=monitor_reason)
            with contextlib.suppress(OSError):
                write_rank_file(self._path, report)


def read_reports(spec: RunSpec, folder: Path, run_id: str | None = None) -> NodeReports:
    """Return what each node reported in this run (None: in any run there); empty where the nodes do not report."""
    return [_read(folder, node, run_id) for node in range(spec.nodes)] if has_node_reports(spec) else []


def wait_for_reports(spec: RunSpec, folder: Path, succeeded: bool, run_id: str | None = None) -> NodeReports:
    """Return what the nodes reported when all of them were done, or at the time limit."""
    reports = read_reports(spec, folder, run_id)

    def done() -> bool:
        for node, report in enumerate(reports):
            if report is None or not report.over:
                reports[node] = _read(folder, node, run_id)
        return all(report is not None and report.over for report in reports)

    wait_until(done, REPORT_LIMIT_S if succeeded else FAILED_REPORT_LIMIT_S)
    return reports


def _read(folder: Path, node: int, run_id: str | None) -> NodeReport | None:
    return read_rank_file(node_report_path(folder, node), NodeReport, run_id)


def any_oom_kill(reports: NodeReports) -> bool:
    """Return whether the kernel of any node killed a process for memory during the run."""
    return any(report.oom_killed for report in reports if report is not None)


def make_machines_part(reports: NodeReports, ranks: Sequence[RankRecord]) -> MachinesPart:
    """Return the machines of the nodes; that of node 0 is this one where it did not report."""
    machines = [report.machine for report in reports if report is not None]
    others = [report.machine for report in reports[1:] if report is not None]
    all_others = others if others and len(others) == len(reports) - 1 else None
    of_node_0 = reports[0].machine if reports and reports[0] is not None else machine.detect_machine()
    return MachinesPart(of_node_0, all_others, _flags(machines, ranks))


def _flags(machines: Sequence[Machine], ranks: Sequence[RankRecord]) -> list[str]:
    flags = {
        "unequal_nodes": len({_machine_type(machine) for machine in machines}) > 1,
        "clocks_differ": clock_sync.clocks_differ(ranks),
    }
    return [name for name, is_set in flags.items() if is_set]


def _machine_type(machine: Machine) -> str:
    """Describe the type of a node, without the amounts that a job may get on it: cores, GPUs, memory."""
    kind: MachineClass = classify_machine(machine)
    physical = None if machine.cpus_physical is None else float(machine.cpus_physical)
    return str(dataclasses.replace(kind, cores=physical, gpus=dict.fromkeys(kind.gpus, 1)))
