"""The command line of mpirun, which differs between implementations. Layer 2."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebench import hosts as host_lists
from scalebench.machine import PRIVATE, VARIABLES

ASK_S = 20.0  # for an answer of mpirun about itself
OPEN_MPI, HYDRA, UNKNOWN = "Open MPI", "Hydra", "unknown"
HYDRA_WORDS = ("HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH")
# What a rank on another host finds only if mpirun takes it there, besides the variables that a record shows.
TAKEN_ALONG = re.compile(r"(PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|OPENBLAS_NUM_THREADS)$|(PYTHON|SCALEBENCH|UCX)[A-Z_]*$")


@dataclass(frozen=True)
class Mpirun:
    """An mpirun and what it understands."""

    path: str
    kind: str
    major: int | None = None


@functools.lru_cache
def identify(path: str) -> Mpirun:
    """Which implementation the mpirun at `path` belongs to."""
    said = _ask([path, "--version"])
    if found := re.search(r"Open ?MPI\)? v?(\d+)\.", said, re.IGNORECASE):
        return Mpirun(path, OPEN_MPI, int(found[1]))
    return Mpirun(path, HYDRA if any(words in said for words in HYDRA_WORDS) else UNKNOWN)


@functools.lru_cache
def slots_here(mpirun: Mpirun) -> int | None:
    """Processes that Open MPI starts by itself where no hosts are named; None when it cannot be told.

    It counts cores, or what a batch system has allocated.
    """
    if mpirun.kind != OPEN_MPI:
        return None
    show = ["--display-allocation"] if mpirun.major is not None and mpirun.major < 5 else ["--display", "allocation"]
    said = _ask([mpirun.path, *_as_root(), *show, "-n", "1", "true"])
    slots = [int(number) for number in re.findall(r"\bslots=(\d+)", said)]
    return sum(slots) or None


def _ask(command: list[str]) -> str:
    """What a command prints; nothing when it cannot be run or takes too long."""
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout + run.stderr


def command(
    mpirun: Mpirun,
    ranks: int,
    program: Sequence[str],
    hosts: Sequence[str] = (),
    slots: int | None = None,  # without hosts, as slots_here tells
    variables: Iterable[str] = (),  # names of those that are set
    folder: str = ".",  # to work in
) -> list[str]:
    """The command that starts `program` so many times, filling the hosts in their order.

    Binding is left to the ranks, which pin themselves to the cores of their places. The transport between them is
    left to MPI and to its own variables (OMPI_MCA_*): what is set here would be measured.
    """
    words = [mpirun.path, "-n", str(ranks)]
    if mpirun.kind == OPEN_MPI:
        words += _open_mpi(ranks, hosts, slots, variables, folder)
    elif mpirun.kind == HYDRA and hosts:
        words += _hydra(hosts, folder)
    return [*words, *program]


def _open_mpi(ranks: int, hosts: Sequence[str], slots: int | None, variables: Iterable[str], folder: str) -> list[str]:
    words = [*_as_root(), "--bind-to", "none"]
    # By slot: ranks in sequence over the hosts, as the places of a run have them. Open MPI would deal them out over
    # sockets. With more ranks than slots, it also makes waiting ranks yield their core, as they then must.
    over = not hosts and slots is not None and ranks > slots
    words += ["--map-by", "slot:OVERSUBSCRIBE" if over else "slot"]
    if hosts:
        words += ["--host", ",".join(hosts), "--wdir", folder]
        words += [word for name in sorted(variables) if travels(name) for word in ("-x", name)]
    return words


def _hydra(hosts: Sequence[str], folder: str) -> list[str]:
    """Hydra takes every variable along, and lets root run."""
    named = host_lists.parse(hosts)
    each = {slots for _, slots in named}
    if len(each) == 1:
        where = ["-hosts", ",".join(name for name, _ in named), "-ppn", str(each.pop())]
    else:
        where = ["-hosts", ",".join(f"{name}:{slots}" for name, slots in named)]
    return [*where, "-wdir", folder]


def _as_root() -> list[str]:
    """Open MPI refuses root, who in a container is everybody."""
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []


def travels(name: str) -> bool:
    """Whether a variable goes along to other hosts. Passwords and keys stay: a command line is for all to see."""
    return bool(TAKEN_ALONG.match(name) or VARIABLES.match(name)) and not PRIVATE.search(name)
