"""Waits for ranks that a person starts with torchrun, where there is neither a scheduler nor MPI.

The launcher prints a command for each node, and watches the files that the agents of the ranks leave in the run's
folder. torchrun starts the processes and numbers them; a rank reads everything else from the folder.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from scalebench.config import placement as host_lists
from scalebench.core.json_files import write_json
from scalebench.core.process import StartError, build_python_command, cancelled, wait_until
from scalebench.core.run_folder import STOP_FILE, TORCHRUN_FILE, query_file_server, rank_processes_path
from scalebench.core.spec import RunSpec
from scalebench.runner.launchers.rank_agent import STOP_INTERVAL_S, TorchrunGroup
from scalebench.runner.launchers.rank_environment import assign_rank_addresses, split_address
from scalebench.runner.launchers.remote_ranks import FS_DELAY_S, RemoteRank
from scalebench.runner.launchers.supervise import GRACE_PERIOD_S, WORKER, GroupExit, LaunchRequest, RankGroup, supervise


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end; see supervise.Launcher.

    Time limits count from the start of the first rank; StartError where none starts within measure.timeout_s.
    Ranks on other hosts end within seconds of the run's end.
    """
    spec, folder = request.spec, request.folder.absolute()
    request, group = replace(request, folder=folder), TorchrunRanks(folder, spec, request.run_id)
    (folder / STOP_FILE).unlink(missing_ok=True)
    *ranks, rendezvous = choose_addresses(spec, request.run_id)
    write_json(folder / TORCHRUN_FILE, TorchrunGroup(request.run_id, ranks, request.module))
    try:
        print(format_instructions(spec, node_commands(spec, folder, rendezvous)), flush=True)
        started_at_s = _wait_for_first_rank(spec, folder, group)
        ended = supervise(request, group, lambda: None, started_at_s)
        # Ranks that lost their connection to those of an ended torchrun may be the first that are seen to fail.
        return replace(ended, broken=ended.broken or group.terminated) if ended.died_first else ended
    finally:
        group.stop()
        (folder / TORCHRUN_FILE).unlink(missing_ok=True)


def choose_addresses(spec: RunSpec, run_id: str) -> list[str]:
    """Return host:port of every rank, and one more on the first host for torchrun's rendezvous."""
    names = host_lists.list_hostnames(spec.config.hardware.hosts, spec.places)
    return assign_rank_addresses([*names, names[0]], run_id, spec.config.hardware.ports)


def node_commands(spec: RunSpec, folder: Path, rendezvous: str) -> list[tuple[str, list[str]]]:
    """Return (host, command that starts its ranks) for each node. `rendezvous`: host:port for torchrun."""
    hosts = host_lists.list_hostnames(spec.config.hardware.hosts, spec.places)
    ranks = Counter(place.node for place in spec.places)
    host_of = {place.node: host for place, host in zip(spec.places, hosts, strict=True)}
    address, port = split_address(rendezvous)
    head = build_python_command("-m", "torch.distributed.run", f"--nnodes={spec.nodes}")
    tail = [f"--master-addr={address}", f"--master-port={port}", "--no-python"]
    tail += build_python_command("-m", WORKER, str(folder))
    return [
        (host_of[node], [*head, f"--node-rank={node}", f"--nproc-per-node={count}", *tail])
        for node, count in ranks.items()
    ]


def format_instructions(spec: RunSpec, by_host: list[tuple[str, list[str]]]) -> str:
    """Return the instructions for the user: which command to start on which host."""
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
        query_file_server(folder)
        if time.monotonic() > deadline_s and not spec.config.debug:
            raise StartError(f"nobody started one within {limit_s:g} s (measure.timeout_s)")
    paths = [rank_processes_path(folder, rank) for rank in range(spec.processes)]
    return min(time.time(), *(path.stat().st_mtime for path in paths if path.exists()))


class TorchrunRanks(RankGroup[RemoteRank]):
    """Ranks that torchrun started on each node."""

    def __init__(self, folder: Path, spec: RunSpec, run_id: str | None = None) -> None:
        super().__init__()
        self._stop, self._services = folder / STOP_FILE, spec.services
        self.terminated: str | None = None  # the value of broken() just before we end the ranks
        self.members = [RemoteRank(folder, rank, run_id) for rank in range(spec.processes)]

    def broken(self) -> str | None:
        """Return which ranks were ended other than by this launcher. An agent stays for a while after its rank failed,
        so that it is not torchrun ending the others because of that failure."""
        ranks = [str(rank) for rank, member in enumerate(self.members) if member.terminated]
        if any(member.lost for member in self.members):  # torchrun ends the others because of it
            return None
        return f"rank {', '.join(ranks)} was terminated on its own host; was its torchrun ended?" if ranks else None

    def stop(self) -> None:
        """Write stop.json, on which all ranks end."""
        if not self._stop.exists():
            self.terminated = self.broken()
            succeeded = all(
                member.poll() == 0 for rank, member in enumerate(self.members) if rank not in self._services
            )
            write_json(self._stop, succeeded)

    def end(self, grace_s: float) -> None:
        """End the ranks on this host first; agents on other hosts poll stop.json."""
        self.stop()
        super().end(grace_s)
        # An agent polls at intervals, and gives its worker time to end.
        limit_s = STOP_INTERVAL_S + GRACE_PERIOD_S + FS_DELAY_S if grace_s else 0.0
        wait_until(self._are_over, limit_s)

    def _are_over(self) -> bool:
        query_file_server(self._stop.parent)
        return all(member.over for member in self.members if member.started)
