"""A rank that somebody starts by hand: what scalebench.worker becomes where no launcher is above it. Layer 2.

torchrun, or whatever tells RANK and WORLD_SIZE, starts `python -m scalebench.worker FOLDER`. That becomes the keeper
of this rank, which runs the worker as its child, with the same surroundings, log and files as under mpirun. It ends
with what started it, and when the run is over for whoever waits for it: on another host no signal arrives.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.launchers import leash
from scalebench.launchers.mpi_rank import PASSED_ON, Keeper
from scalebench.launchers.surroundings import ADDRESSES, RUN_ID
from scalebench.launchers.watch import GRACE_S
from scalebench.records import from_dict, read_json
from scalebench.run_folder import RESULT_FILE, SPEC_FILE, STOP_FILE, TORCHRUN_FILE
from scalebench.spec import InputError, RunSpec, read_spec

LAUNCHER = "by_hand"
LOOK_S = 1.0  # between two looks at the folder, which may be on another machine
THEIRS = ("TORCHELASTIC_", "TORCH_", "GROUP_", "ROLE_")  # torchrun's, for groups that meet at its own store
MODULE = "scalebench.launchers.hand_rank"


@dataclass
class Waiting:
    """What the ranks of a run need to know from whoever waits for them."""

    run_id: str
    addresses: list[str]  # host:port of each rank
    module: str


def stand_in(folder: Path) -> None:
    """Become the keeper of a rank where somebody started this process by hand, as the folder's run asks for.

    Comes back where a launcher did. The process stays the same, so that whoever started it sees how it ends.
    """
    if RUN_ID in os.environ:
        return
    if not (folder / SPEC_FILE).exists():
        where = f"{socket.gethostname()} sees no {folder / SPEC_FILE}"
        sys.exit(f"scalebench.worker: {where}; a run's folder has to be on a file system that all its hosts share")
    if read_spec(folder).config.strategy.launcher == LAUNCHER:
        os.execv(sys.executable, [sys.executable, "-m", MODULE, str(folder)])


def rank_of(variables: Mapping[str, str], spec: RunSpec) -> int:
    """The rank of this process. InputError where its variables do not fit the run."""
    found = {}
    for name in ("RANK", "WORLD_SIZE"):
        try:
            found[name] = int(variables[name])
        except KeyError:
            raise InputError(f"{name} is not set: start this with torchrun, as the waiting program says") from None
        except ValueError:
            raise InputError(f"{name}={variables[name]} is no number") from None
    rank, size = found["RANK"], found["WORLD_SIZE"]
    if size != spec.processes or not 0 <= rank < size:
        raise InputError(
            f"RANK={rank} of WORLD_SIZE={size} does not fit the run, which has {spec.processes} processes on "
            f"{spec.nodes} nodes; see --nnodes and --nproc-per-node"
        )
    place = spec.places[rank]
    for name, right in (("LOCAL_RANK", place.local_rank), ("GROUP_RANK", place.node)):
        if variables.get(name, str(right)) != str(right):
            raise InputError(
                f"rank {rank} should have {name}={right} and has {variables[name]}; see --nproc-per-node of each node"
            )
    return rank


def read_waiting(folder: Path) -> Waiting:
    """InputError where nobody waits for ranks of this folder."""
    try:
        return from_dict(Waiting, read_json(folder / TORCHRUN_FILE))
    except FileNotFoundError:
        why = "its run is over" if (folder / RESULT_FILE).exists() else f"start one with strategy.launcher={LAUNCHER}"
        raise InputError(f"no scalebench waits for ranks of {folder}; {why}") from None


def over(folder: Path) -> bool:
    """Whether the ranks shall end: they are told to, or the row is there."""
    return (folder / STOP_FILE).exists() or (folder / RESULT_FILE).exists()


def went_well(folder: Path) -> bool:
    """Whether the ranks shall end because all that measure have ended well."""
    try:
        return read_json(folder / STOP_FILE) is True
    except FileNotFoundError:
        return False


class HandKeeper(Keeper):
    """Also ends the worker where the run is over."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        self._code = 0
        # Signals are for the main thread, which may block them to wait for one: another that did not would take it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        threading.Thread(target=self._end_when_over, args=(folder,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self, spec: RunSpec, module: str) -> int:
        """The exit status for torchrun: where the ranks of one node seem to have ended well and others have not, it
        waits there for minutes, so that being told to end is no good end but of a run that went well."""
        status = super().run(spec, module)
        return 0 if self._code == 0 or went_well(self._folder) else status or 1

    def _run(self, *arguments: Any, **options: Any) -> int:
        self._code = super()._run(*arguments, **options)
        return self._code

    def _end_when_over(self, folder: Path) -> None:
        while not over(folder):
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGCONT)
        time.sleep(GRACE_S)
        self._send(signal.SIGKILL)


def main(arguments: list[str]) -> int:
    leash.end_with_launched()
    folder = Path(arguments[0]).absolute()
    try:
        spec, waiting = read_spec(folder), read_waiting(folder)
        rank = rank_of(os.environ, spec)
    except (InputError, OSError) as error:
        print(f"scalebench.worker: {error}", file=sys.stderr, flush=True)
        return 2
    for name in [name for name in os.environ if name.startswith(THEIRS)]:
        del os.environ[name]
    os.environ |= {RUN_ID: waiting.run_id, ADDRESSES: ",".join(waiting.addresses)}
    return HandKeeper(folder, rank).run(spec, waiting.module)


if __name__ == "__main__":
    # At its own end the interpreter takes back what signals do, and one that comes then would look like a failure.
    os._exit(main(sys.argv[1:]))
