"""`scalebench doctor hardware=NAME`: does this host fit that YAML, and what has SLURM to say of it?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench import cli, machine, resolve
from scalebench.compose import compose_config
from scalebench.config_errors import FORESEEN, explain
from scalebench.machine import Machine
from scalebench.slurm.commands import Slurm, inside
from scalebench.spec import Config, HardwareSpec, InputError
from scalebench.verbs import claims, places, scheduler
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED, Claim
from scalebench.verbs.partition import Node

ELSEWHERE = "not a node"


def main(words: list[str]) -> int:
    """0: nothing differs; 1: something does. InputError for words that cannot be composed."""
    config = composed(words)
    found, hint = look(config, machine.detect(), words)
    table = Table("key", f"hardware={config.hardware.name} says", "here", "", box=box.SIMPLE_HEAD)
    for line in found:
        table.add_row(line.key, line.said, line.here, line.verdict)
    console = Console(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else 400  # a line for each key
    console.print(table)
    counts = {verdict: sum(line.verdict == verdict for line in found) for verdict in (OK, DIFFERS, UNCHECKED)}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if hint is not None:
        console.print(hint, soft_wrap=True)  # a command, to be copied whole
    return 1 if counts[DIFFERS] else 0


def composed(words: list[str]) -> Config:
    """The config that these words mean to a run, with its figures checked; --config-dir names a folder of one's own."""
    try:
        switches, overrides = cli.split(words)
        for word in overrides:
            if "=" not in word:
                raise InputError(f"doctor takes hardware=NAME and settings, not '{word}'")
        named = [word.partition("=")[2] for word in overrides if word.startswith("hardware=")]
        if not named or "," in named[-1]:
            raise InputError("doctor compares this host with one hardware YAML: doctor hardware=NAME")
        own = [f"hydra.searchpath=[{folder(switches)}]"] if switches else []
        config = compose_config([*own, *overrides])
    except FORESEEN as error:
        raise InputError(explain(error, words)) from error
    resolve.check(config)
    return config


def folder(switches: Sequence[str]) -> str:
    """The address of the folder that --config-dir or -cd names. InputError for any other switch."""
    parts = [part for word in switches for part in word.split("=", 1)]
    if len(parts) != 2 or parts[0] not in ("--config-dir", "-cd"):
        raise InputError(f"doctor takes one switch, --config-dir FOLDER, not '{' '.join(switches)}'")
    path = Path(parts[1]).absolute()
    if not path.is_dir():
        raise InputError(f"--config-dir: {path} is no folder")
    return path.as_uri()


def look(config: Config, here: Machine, words: Sequence[str]) -> tuple[list[Claim], str | None]:
    """All lines, and what to do about those of a node where this host is none."""
    hardware = config.hardware
    own = [*claims.of_node(hardware, here, inside()), *places.of_node(hardware)]
    if hardware.scheduler != "slurm":
        return own + (places.of_all(config) if hardware.hosts or hardware.max_nodes > 1 else []), None
    answer = scheduler.ask(Slurm(hardware.slurm.bin), config)
    name = node_name(here, answer.nodes)
    if name is None:
        own = claims.unchecked(own, ELSEWHERE)
    line = _this_host(hardware, here, name, answer.nodes)
    found = [line, *answer.claims, *own, *places.container(hardware), *places.of_all(config)]
    return found, by_srun(hardware, words) if name is None and answer.nodes else None


def node_name(here: Machine, nodes: Sequence[Node]) -> str | None:
    """What SLURM calls this host; None where it is no node: a login node, also inside an allocation of salloc's."""
    short = here.hostname.partition(".")[0]
    known = next((node.name for node in nodes if node.name.partition(".")[0] == short), None)
    return os.environ.get("SLURMD_NODENAME") or known  # which slurmd sets, for what it starts itself


def by_srun(hardware: HardwareSpec, words: Sequence[str]) -> str:
    """The command that has a node looked at."""
    slurm = hardware.slurm
    asked = ["srun", "--nodes=1", "--ntasks=1"]
    if not inside():
        named = ("partition", "account", "qos", "reservation", "constraint")
        asked += [f"--{key}={value}" for key in named if (value := getattr(slurm, key)) is not None]
        asked += ["--exclusive"] if slurm.exclusive else []
        if hardware.devices == "cuda" and slurm.gres and hardware.gpus_per_node is not None:
            asked += [f"--gres={slurm.gres.replace('{gpus}', str(hardware.gpus_per_node))}"]
    command = shlex.join([*asked, "python", "-m", "scalebench", "doctor", *words])
    return f"this host is no node of hardware={hardware.name}; to look at one: {command}"


def _this_host(hardware: HardwareSpec, here: Machine, name: str | None, nodes: Sequence[Node]) -> Claim:
    said = f"a node of {hardware.slurm.partition or 'the default partition'}"
    job = f", in job {os.environ['SLURM_JOB_ID']}" if inside() else ""
    if name is None:
        kind = "no node of it: a login node?" if nodes else "of which nobody here says whether it is one"
        return Claim("this host", said, f"{here.hostname}, {kind}{job}", UNCHECKED)
    if nodes and name not in [node.name for node in nodes]:
        return Claim("this host", said, f"{name}, of another partition{job}", DIFFERS)
    return Claim("this host", said, f"{name}{job}", OK if nodes else UNCHECKED)
