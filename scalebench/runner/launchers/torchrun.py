"""Waits for ranks that a person starts with torchrun, where there is neither a scheduler nor MPI. Layer 2.

The launcher prints a command for each node, and watches the files that the agents of the ranks leave in the run's
folder. torchrun starts the processes and numbers them; everything else that a rank needs is in the folder.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from scalebench.config import placement as host_lists
from scalebench.core.json_files import write_json
from scalebench.core.process import StartError, cancelled, wait_until
from scalebench.core.run_folder import STOP_FILE, TORCHRUN_FILE, rank_processes_path
from scalebench.core.spec import RunSpec
from scalebench.runner.launchers.rank_agent import STOP_INTERVAL_S, TorchrunGroup
from scalebench.runner.launchers.rank_environment import LOOPBACK, free_ports, rank_addresses
from scalebench.runner.launchers.remote_ranks import FS_DELAY_S, RemoteRank
from scalebench.runner.launchers.supervise import GRACE_S, WORKER, Group, GroupExit, LaunchRequest, supervise


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end; see watch.Launcher.

    What limits a run counts from when the first rank is seen; StartError where none starts within measure.timeout_s.
    Ranks on other hosts end within seconds of the run's end.
    """
    spec, folder = request.spec, request.folder.absolute()
    request, group = replace(request, folder=folder), TorchrunRanks(folder, spec)
    (folder / STOP_FILE).unlink(missing_ok=True)
    *of_ranks, rendezvous = addresses(spec, request.run_id)
    write_json(folder / TORCHRUN_FILE, TorchrunGroup(request.run_id, of_ranks, request.module))
    try:
        print(instructions(spec, commands(spec, folder, rendezvous)), flush=True)
        started_at_s = _wait_for_first_rank(spec, folder, group)
        ended = supervise(request, group, lambda: None, started_at_s)
        # Ranks that lost their connection to those of an ended torchrun may have been seen to fail first.
        return replace(ended, broken=ended.broken or group.terminated) if ended.died_first else ended
    finally:
        group.stop()
        (folder / TORCHRUN_FILE).unlink(missing_ok=True)


def addresses(spec: RunSpec, run_id: str) -> list[str]:
    """Return host:port of every rank, and one more on the first host, where torchrun's own processes meet."""
    names = host_lists.of_places(spec.config.hardware.hosts, spec.places)
    names.append(names[0])
    if {"localhost", LOOPBACK, socket.gethostname()}.issuperset(names):
        return [f"{LOOPBACK}:{port}" for port in free_ports(len(names))]
    return rank_addresses(names, run_id)


def commands(spec: RunSpec, folder: Path, rendezvous: str) -> list[tuple[str, list[str]]]:
    """Return (host, command that starts its ranks) for each node. `rendezvous`: host:port for torchrun."""
    hosts = host_lists.of_places(spec.config.hardware.hosts, spec.places)
    ranks = Counter(place.node for place in spec.places)
    host_of = {place.node: host for place, host in zip(spec.places, hosts, strict=True)}
    address, _, port = rendezvous.rpartition(":")
    head = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={spec.nodes}"]
    tail = [f"--master-addr={address}", f"--master-port={port}", "-m", WORKER, str(folder)]
    return [
        (host_of[node], [*head, f"--node-rank={node}", f"--nproc-per-node={count}", *tail])
        for node, count in ranks.items()
    ]


def instructions(spec: RunSpec, by_host: list[tuple[str, list[str]]]) -> str:
    """Write for a person what to start where."""
    limit_s = spec.config.measure.timeout_s
    head = f"{spec.label} waits {limit_s:g} s for its ranks; start on each host, in {os.getcwd()}:"
    return "\n".join([head, *(f"{host}: {shlex.join(command)}" for host, command in by_host)])


def _wait_for_first_rank(spec: RunSpec, folder: Path, group: TorchrunRanks) -> float:
    """Return when the first agent started its rank, in seconds since the epoch."""
    limit_s = spec.config.measure.timeout_s
    deadline_s = time.monotonic() + limit_s
    while not any(member.started for member in group.members):
        if cancelled.wait(STOP_INTERVAL_S / 2):
            raise KeyboardInterrupt
        if time.monotonic() > deadline_s and not spec.config.debug:
            raise StartError(f"nobody started one within {limit_s:g} s (measure.timeout_s)")
    paths = [rank_processes_path(folder, rank) for rank in range(spec.processes)]
    return min(time.time(), *(path.stat().st_mtime for path in paths if path.exists()))


class TorchrunRanks(Group[RemoteRank]):
    """Ranks that torchrun started on each node."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        super().__init__()
        self._stop, self._services = folder / STOP_FILE, spec.services
        self.terminated: str | None = None  # `broken` at the last moment before we end the ranks
        self.members = [RemoteRank(folder, rank) for rank in range(spec.processes)]

    def broken(self) -> str | None:
        """Return which ranks were ended, and not from here. An agent stays for a while after its rank failed, so that
        torchrun has not ended the others because of that."""
        ranks = [str(rank) for rank, member in enumerate(self.members) if member.terminated]
        if any(member.lost for member in self.members):  # which is why
            return None
        return f"rank {', '.join(ranks)} was told to end where it runs; was its torchrun ended?" if ranks else None

    def stop(self) -> None:
        """Have all ranks see that they must end."""
        if not self._stop.exists():
            self.terminated = self.broken()
            well = all(member.poll() == 0 for rank, member in enumerate(self.members) if rank not in self._services)
            write_json(self._stop, well)

    def end(self, grace_s: float) -> None:
        """End the ranks on this host first; agents elsewhere look for stop.json."""
        self.stop()
        super().end(grace_s)
        # An agent looks now and then, and gives its worker time to end.
        limit_s = STOP_INTERVAL_S + GRACE_S + FS_DELAY_S if grace_s else 0.0
        wait_until(lambda: all(member.over for member in self.members if member.started), limit_s)
