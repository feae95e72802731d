"""What is done once for each node of a run that nodes attend: its machine is told, and a monitor samples it. Layer 2.

The keeper of the node's first rank does it (launchers.mpi_rank), for the program that launched the run may stand on
none of the nodes. What comes of it are machine<node>.json and a series in the run's folder, which all nodes see.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from scalebench import gpus, machine
from scalebench.machine import Machine
from scalebench.measure.monitor.keeper import Keeper
from scalebench.records import write_json
from scalebench.run_folder import node_report_path
from scalebench.spec import RunSpec

FACTS_S = 10.0  # that facts may still take at the end of the run, where a driver holds them up


@dataclass
class NodeFacts:
    """machine<node>.json: written at the start, and again at the end with what is known only then."""

    node: int
    rank: int  # whose keeper tells this
    machine: Machine
    visible_gpus: list[int | None]  # NVML's numbers of what ranks here call device 0, 1 and so on; null: part of a GPU
    over: bool = False
    oom_killed: bool | None = None  # whether the kernel killed a process for memory meanwhile; null: it does not tell
    monitor_reason: str | None = None  # why there is no series, or what is missing from it


def attended_by_nodes(spec: RunSpec) -> bool:
    """Whether the nodes of this run tell of themselves; otherwise whoever launches it starts all ranks on its own host,
    and sees to it there."""
    hardware = spec.config.hardware
    return hardware.scheduler == "slurm" or bool(hardware.hosts) or spec.config.strategy.launcher == "by_hand"


@contextlib.contextmanager
def attend_node(spec: RunSpec, folder: Path, node: int, rank: int) -> Iterator[None]:
    """Around the worker of `rank`: attends its `node` where that is for this rank to do, and else does nothing.

    To be entered before the worker starts, in the thread that starts it. Nothing in here is waited for while the worker
    runs, and whatever goes wrong is a reason in the record and no failed run.
    """
    if not attended_by_nodes(spec) or spec.places[rank].local_rank != 0:
        yield
        return
    kills_before = machine.oom_kills()
    with Keeper(spec, folder, node=node) as keeper:
        facts = _Facts(
            lambda: NodeFacts(node, rank, machine.detect(), gpus.visible_gpus()), node_report_path(folder, node)
        )
        yield
    kills = machine.oom_kills()
    oom_killed = None if kills is None or kills_before is None else kills > kills_before
    facts.end(oom_killed, keeper.reason)


class _Facts:
    """Looks at the machine while the worker starts, which takes far longer."""

    def __init__(self, look: Callable[[], NodeFacts], path: Path) -> None:
        self._look, self._path = look, path
        self._found: NodeFacts | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the thread that waits
        with contextlib.suppress(Exception):
            self._found = self._look()
            write_json(self._path, asdict(self._found))

    def end(self, oom_killed: bool | None, reason: str | None) -> None:
        self._thread.join(FACTS_S)
        if self._found is not None and not self._thread.is_alive():
            self._found.over, self._found.oom_killed, self._found.monitor_reason = True, oom_killed, reason
            with contextlib.suppress(OSError):
                write_json(self._path, asdict(self._found))
