"""Waits for ranks that somebody starts by hand, where there is neither a scheduler nor MPI. Layer 2.

The launcher prints a command for each node, and watches the files that the ranks leave in the run's folder.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from scalebench import hosts as host_lists
from scalebench.launchers import ports
from scalebench.launchers.hand_rank import LOOK_S, Waiting
from scalebench.launchers.kept_group import LATE_S
from scalebench.launchers.kept_rank import KeptRank
from scalebench.launchers.surroundings import LOOPBACK, free_ports
from scalebench.launchers.watch import GRACE_S, Ended, Group, attend
from scalebench.measure.progress import Progress
from scalebench.process import StartError, cancelled, wait_until
from scalebench.records import write_json
from scalebench.run_folder import STOP_FILE, TORCHRUN_FILE, rank_processes_path
from scalebench.spec import RunSpec

WORKER = "scalebench.worker"


def launch(
    spec: RunSpec,
    folder: Path,
    run_id: str,
    on_look: Callable[[list[Progress]], None] = lambda progress: None,
    module: str = WORKER,
) -> Ended:
    """Run all ranks of `spec` in `folder`, which every host sees, to their end; see local.launch.

    What limits a run counts from the first rank's sign of life, and StartError tells that none came within
    measure.timeout_s. Ranks on other hosts end within seconds of the run's end.
    """
    folder = folder.absolute()
    group = HandGroup(folder, spec)
    (folder / STOP_FILE).unlink(missing_ok=True)
    *of_ranks, torchrun = addresses(spec, run_id)
    write_json(folder / TORCHRUN_FILE, asdict(Waiting(run_id, of_ranks, module)))
    try:
        print("\n".join(lines(spec, commands(spec, folder, torchrun))), flush=True)
        _wait_for_a_sign(spec, folder, group)
        ended = _from_the_start(attend(spec, folder, group, lambda: None, on_look), folder)
        # What the other ranks say of lost connections may have been seen first.
        return replace(ended, broken=ended.broken or group.told) if ended.died_first else ended
    finally:
        group.stop()
        (folder / TORCHRUN_FILE).unlink(missing_ok=True)


def addresses(spec: RunSpec, run_id: str) -> list[str]:
    """host:port of every rank, and one more on the first host, where torchrun's own processes meet."""
    names = host_lists.of_places(spec.config.hardware.hosts, spec.places)
    names.append(names[0])
    if {"localhost", LOOPBACK, socket.gethostname()}.issuperset(names):
        return [f"{LOOPBACK}:{port}" for port in free_ports(len(names))]
    return ports.addresses(names, run_id)


def commands(spec: RunSpec, folder: Path, meeting: str) -> list[tuple[str, list[str]]]:
    """(host, words of the command that starts its ranks) for each node. `meeting`: host:port for torchrun."""
    hosts = host_lists.of_places(spec.config.hardware.hosts, spec.places)
    ranks = Counter(place.node for place in spec.places)
    host_of = {place.node: host for place, host in zip(spec.places, hosts, strict=True)}
    address, _, port = meeting.rpartition(":")
    head = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={spec.nodes}"]
    tail = [f"--master-addr={address}", f"--master-port={port}", "-m", WORKER, str(folder)]
    return [
        (host_of[node], [*head, f"--node-rank={node}", f"--nproc-per-node={count}", *tail])
        for node, count in ranks.items()
    ]


def lines(spec: RunSpec, found: list[tuple[str, list[str]]]) -> list[str]:
    """What to do, for a person."""
    limit_s = spec.config.measure.timeout_s
    told = f"{spec.label} waits {limit_s:g} s for its ranks; start on each host, in {os.getcwd()}:"
    return [told, *(f"{host}: {shlex.join(words)}" for host, words in found)]


def _wait_for_a_sign(spec: RunSpec, folder: Path, group: HandGroup) -> None:
    """Until the first rank has started."""
    limit_s = spec.config.measure.timeout_s
    deadline_s = time.monotonic() + limit_s
    while not group.started:
        if cancelled.wait(LOOK_S / 2):
            raise KeyboardInterrupt
        if time.monotonic() > deadline_s and not spec.config.debug:
            raise StartError(f"nobody started one within {limit_s:g} s (measure.timeout_s)")


def _from_the_start(ended: Ended, folder: Path) -> Ended:
    """With the times counted from when the first keeper started its rank, which was seen a while later."""
    started_at_s = min(
        (
            path.stat().st_mtime
            for rank in range(len(ended.exit_codes))
            if (path := rank_processes_path(folder, rank)).exists()
        ),
        default=ended.started_at_s,
    )
    late_s = max(0.0, ended.started_at_s - started_at_s)
    return replace(ended, started_at_s=ended.started_at_s - late_s, wall_s=ended.wall_s + late_s)


class HandGroup(Group):
    """Ranks that somebody else started."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        super().__init__()
        self._stop, self._services = folder / STOP_FILE, spec.services
        self.told: str | None = None  # `broken` at the last moment before we tell ranks to end
        self.members: list[KeptRank] = [KeptRank(folder, rank) for rank in range(spec.processes)]

    @property
    def started(self) -> bool:
        """Whether one of them has."""
        return any(member.seen for member in self.members)

    def broken(self) -> str | None:
        """Where ranks were told to end, and not from here. A keeper stays for a while after its rank failed, so that
        torchrun has not told the others because of that."""
        told = [str(rank) for rank, member in enumerate(self.members) if member.told]
        if any(member.lost for member in self.members):  # which is why
            return None
        return f"rank {', '.join(told)} was told to end where it runs; was its torchrun ended?" if told else None

    def stop(self) -> None:
        """Have all ranks see that they shall end."""
        if not self._stop.exists():
            self.told = self.broken()
            well = all(member.poll() == 0 for rank, member in enumerate(self.members) if rank not in self._services)
            write_json(self._stop, well)

    def end(self, grace_s: float) -> None:
        """First the ranks that are here; those elsewhere look for the word."""
        self.stop()
        super().end(grace_s)
        # A keeper looks now and then, and gives its worker time to end.
        limit_s = LOOK_S + GRACE_S + LATE_S if grace_s else 0.0
        wait_until(lambda: all(member.over for member in self.members if member.seen), limit_s)
