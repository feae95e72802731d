"""SLURM as it answers from this host, beside what a hardware YAML asks of it, for `scalebench doctor`."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field

from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.spec import Config, SlurmSpec
from scalebench.verbs import partition
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED, Claim
from scalebench.verbs.partition import Node

PYXIS = "--container-image"  # an option that srun has with the plugin only


@dataclass(frozen=True)
class Answer:
    """What SLURM said: lines of the table, and the nodes of the partition, as far as it told them."""

    claims: list[Claim]
    nodes: list[Node] = field(default_factory=list)


def ask(slurm: Slurm, config: Config) -> Answer:
    """A few short questions, none of which changes or starts anything."""
    wants = config.hardware.slurm
    if not slurm.has("sbatch"):
        where = wants.bin or "the PATH"
        return _unanswered(f"no sbatch on {where}; hardware.slurm.bin names its folder")
    try:
        version = slurm.run("sbatch", "--version").strip()
        nodes = partition.parse(slurm.run("sinfo", "--noheader", "--Node", f"--format={partition.FORMAT}"))
    except SlurmError as error:
        return _unanswered(str(error))
    mine = partition.chosen(nodes, wants.partition)
    lines = [Claim("scheduler", "slurm", f"{version}, {slurm.path('sbatch')}", OK)]
    lines += partition.of_partition(config, nodes)
    lines += _admission(slurm, wants, mine[0].partition) if mine else []
    return Answer([*lines, *_mpi(slurm, wants), *_container(slurm, wants)], mine)


def _unanswered(why: str) -> Answer:
    return Answer([Claim("scheduler", "slurm", why, DIFFERS)])


def listed(shown: str, key: str) -> list[str] | None:
    """The names after `key=` in what scontrol shows of a partition; None where it takes all."""
    found = re.search(rf"(?:^|\s){key}=(\S+)", shown)
    return None if found is None or found[1] == "ALL" else found[1].split(",")


def _admission(slurm: Slurm, wants: SlurmSpec, name: str) -> list[Claim]:
    """Account, QOS and reservation. Whether the user belongs to an account, only sbatch knows for sure."""
    shown = _told(slurm, "scontrol", "show", "partition", name) if wants.account or wants.qos else ""
    lines = []
    for key, asked, allowed in (("account", wants.account, "AllowAccounts"), ("qos", wants.qos, "AllowQos")):
        names = listed(shown, allowed)
        if asked is not None and names is None:
            here = f"partition {name} takes all" if shown else "scontrol does not say"
            lines.append(Claim(f"slurm.{key}", asked, f"{here}; whether you may, sbatch says", UNCHECKED))
        elif asked is not None and names is not None:
            here = f"partition {name} takes {', '.join(names)}"
            lines.append(Claim(f"slurm.{key}", asked, here, OK if asked in names else DIFFERS))
    if wants.reservation is not None:
        known = f"ReservationName={wants.reservation}" in _told(slurm, "scontrol", "show", "reservation").split()
        here = "is there" if known else "no such reservation"
        lines.append(Claim("slurm.reservation", wants.reservation, here, OK if known else DIFFERS))
    return lines


def _mpi(slurm: Slurm, wants: SlurmSpec) -> list[Claim]:
    """What starts ranks of MPI."""
    if wants.mpi == "mpirun":
        return [_program("slurm.mpi", "mpirun", "a line of slurm.setup may load it")]
    names = re.findall(r"^\s+(\S+)$", _told(slurm, "srun", "--mpi=list"), re.MULTILINE)
    verdict = UNCHECKED if not names else OK if wants.mpi in names else DIFFERS
    return [Claim("slurm.mpi", wants.mpi, f"srun has {', '.join(names)}" if names else "srun does not say", verdict)]


def _container(slurm: Slurm, wants: SlurmSpec) -> list[Claim]:
    """What opens the image."""
    if wants.container is None:
        return []
    if wants.container_runtime != "pyxis":
        return [_program("slurm.container_runtime", wants.container_runtime, "the nodes may have it")]
    there = PYXIS in _told(slurm, "srun", "--help")
    here = f"srun has {'' if there else 'no '}{PYXIS}"
    return [Claim("slurm.container_runtime", "pyxis", here, OK if there else DIFFERS)]


def _program(key: str, name: str, otherwise: str) -> Claim:
    found = shutil.which(name)
    here = found or f"not on the PATH of this host; {otherwise}"
    return Claim(key, name, here, OK if found else UNCHECKED)


def _told(slurm: Slurm, name: str, *words: str) -> str:
    """What it says; nothing where it fails."""
    try:
        return slurm.run(name, *words)
    except SlurmError:
        return ""
