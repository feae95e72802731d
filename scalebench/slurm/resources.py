"""What a user may ask of SLURM: `hardware.slurm`, checked before anything is submitted. Layer 2.

The image that ranks run in, as Apptainer and pyxis take it. Layer 2.

What a run asks of SLURM: nodes, tasks, cores, GPUs, memory and time, and the step that starts its ranks. Layer 2.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.errors import InputError, no_such
from scalebench.core.machine import machine
from scalebench.core.spec import HardwareSpec, RunSpec, SlurmSpec

RUNTIMES = ("apptainer", "pyxis")
MPI = ("mpirun", "pmix", "pmix_v2", "pmix_v3", "pmix_v4", "pmix_v5", "pmi2", "openmpi", "cray_shasta")
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?")
NAMES = "partition account qos reservation constraint".split()
GEOMETRY = "gpus and the keys of hardware"
# Options that scalebench writes itself, and the keys that they come from.
OURS = {name: f"hardware.slurm.{name}" for name in (*NAMES, "exclusive", "gres")} | {
    "mem": "hardware.slurm.memory", "time": "hardware.slurm.time_minutes", "nodes": GEOMETRY, "ntasks": GEOMETRY,
    "ntasks-per-node": GEOMETRY, "cpus-per-task": "hardware.cpus_per_device", "output": "the folder of the run",
    "error": "the folder of the run", "job-name": "the run", "no-requeue": "scalebench", "requeue": "scalebench",
    "array": "scalebench", "wrap": "scalebench", "wait": "scalebench", "parsable": "scalebench",
    "overcommit": GEOMETRY,
}  # fmt: skip
# Of the step that starts the ranks. Where the job and the step have the same one, the step takes over the job's.
STEP_OURS = dict.fromkeys("nodes ntasks ntasks-per-node distribution overcommit nodelist".split(), GEOMETRY) | {
    "cpus-per-task": "hardware.cpus_per_device", "cpu-bind": "hardware.bind", "mpi": "hardware.slurm.mpi",
    "kill-on-bad-exit": "scalebench", "output": "the folder of the run", "error": "the folder of the run",
    "container-image": "hardware.slurm.container", "container-mounts": "hardware.slurm.container_mounts",
}  # fmt: skip


def check(hardware: HardwareSpec) -> None:
    """InputError for what no cluster would understand; what this one does not have is its own to say."""
    slurm = hardware.slurm
    for key, value, known in (
        ("hardware.scheduler", hardware.scheduler, ("none", "slurm")),
        ("hardware.slurm.container_runtime", slurm.container_runtime, RUNTIMES),
        ("hardware.slurm.mpi", slurm.mpi, MPI),
    ):
        if value not in known:
            raise InputError(f"{key}={value}: {no_such('such value', value, known)}")
    if slurm.time_minutes is not None and slurm.time_minutes < 1:
        raise InputError(f"hardware.slurm.time_minutes={slurm.time_minutes} should be at least 1")
    parse(slurm.lines)
    parse(slurm.srun, "hardware.slurm.srun", STEP_OURS)
    _check_words(slurm)
    mounts(slurm.container_mounts)


def parse(
    lines: Sequence[str], key: str = "hardware.slurm.lines", ours: dict[str, str] = OURS
) -> dict[str, str | bool]:
    """Options by name, True for those without a value. InputError for what is none, or is not the user's to set."""
    found: dict[str, str | bool] = {}
    for line in lines:
        match = OPTION.fullmatch(line)
        if match is None:
            raise InputError(f"{key}: '{line}' should be --name=value or --name, in one line")
        name, value = match.groups()
        if name in ours:
            raise InputError(f"{key}: --{name} comes from {ours[name]}; leave it out here")
        found[name] = True if value is None else value
    return found


def mounts(told: Sequence[str]) -> list[tuple[str, str]]:
    """(FROM, TO) of each mount, with what stands behind TO, such as :ro. InputError for what is none."""
    found = []
    for mount in told:
        match = re.fullmatch(r"(/[^:,\n]*):(/[^:,\n]*(?::[a-z,]+)?)", mount)
        if match is None:
            raise InputError(
                f"hardware.slurm.container_mounts: '{mount}' should be FROM:TO, both from the root, such as /data:/data"
            )
        found.append((match[1], match[2]))
    return found


def _check_words(slurm: SlurmSpec) -> None:
    for key in NAMES:
        value = getattr(slurm, key)
        if value is not None and (not value or re.search(r"\s", value) or value.startswith("-")):
            raise InputError(f"hardware.slurm.{key}='{value}' should be one word")
    if slurm.memory is not None and not re.fullmatch(r"\d+([KMGT]B?)?", slurm.memory, re.IGNORECASE):
        raise InputError(f"hardware.slurm.memory={slurm.memory} should be a number and K, M, G or T, such as 64G")
    if not re.fullmatch(r"(?:[^\s{}]|\{gpus\})*", slurm.gres):
        raise InputError(f"hardware.slurm.gres={slurm.gres} should be one word such as gpu:{{gpus}}")
    for key in ("container", "container_python", "bin"):
        if (value := getattr(slurm, key)) is not None and (not value or "\n" in value):
            raise InputError(f"hardware.slurm.{key}='{value}' should be a path in one line")
    if slurm.container is not None and slurm.container_runtime == "apptainer" and slurm.container.startswith("-"):
        raise InputError(f"hardware.slurm.container={slurm.container} should be an image")


def srun_words(spec: RunSpec, folder: Path) -> list[str]:
    """Options of srun, where pyxis has given it some for containers."""
    slurm = spec.config.hardware.slurm
    if slurm.container is None or slurm.container_runtime != "pyxis":
        return []
    return [f"--container-image={slurm.container}", f"--container-mounts={','.join(_mounted(spec, folder))}"]


def python(spec: RunSpec, folder: Path) -> list[str]:
    """The command that is Python for a rank."""
    slurm = spec.config.hardware.slurm
    if slurm.container is None:
        return [sys.executable]
    if slurm.container_runtime == "pyxis":
        return [slurm.container_python]
    gpus = ["--nv"] if spec.device == "cuda" else []
    binds = ["--bind", ",".join(_mounted(spec, folder))]
    return ["apptainer", "exec", *gpus, *binds, slurm.container, slurm.container_python]


def folders(spec: RunSpec, folder: Path) -> list[Path]:
    """What a rank reads and writes: the run's folder, the data set's, and where a node keeps a copy of that."""
    dataset, stage = spec.config.dataset, spec.config.hardware.stage
    told = [folder, dataset.cache or machine.cache_folder(), dataset.path, stage]
    absolute = [Path(os.path.abspath(Path(path).expanduser())) for path in told if path is not None]
    return list(dict.fromkeys(absolute))


def _mounted(spec: RunSpec, folder: Path) -> list[str]:
    paths = folders(spec, folder)
    for path in paths:
        if set(",:") & set(str(path)):
            raise InputError(
                f"{path} cannot be mounted in a container: commas and colons part mounts; take another name"
            )
    told = [f"{source}:{target}" for source, target in mounts(spec.config.hardware.slurm.container_mounts)]
    return [f"{path}:{path}" for path in paths] + told


RANK_AGENT = "scalebench.runner.launchers.rank_agent"  # the module that srun and mpirun start for each rank
STARTING_S = 120.0  # that a job takes beside its run: starting Python on all nodes, and writing the row


@dataclass(frozen=True)
class Geometry:
    """Of one job. The memory and the GPUs are those of each node."""

    nodes: int
    tasks: int
    tasks_per_node: int  # on the fullest node
    even: bool  # as many on each
    cpus_per_task: int
    overcommit: bool  # more tasks on a node than it has cores
    gpus_per_node: int | None = None
    gres: str | None = None
    memory: str | None = None  # 0: all of it


def geometry(spec: RunSpec) -> Geometry:
    """Of the job that `spec` becomes."""
    hardware = spec.config.hardware
    slurm, cores = hardware.slurm, hardware.cpus_per_node
    tasks = Counter(place.node for place in spec.places)
    fullest = max(tasks.values())
    cpus = hardware.cpus_per_device or 1
    if spec.config.strategy.processes == "one_for_all":
        cpus *= max(len(place.devices) for place in spec.places)
    if cores is not None:  # a task for each device, and those of other roles beside them
        cpus = max(1, min(cpus, cores // fullest))
    gpus = _gpus_per_node(spec)
    return Geometry(
        nodes=spec.nodes,
        tasks=spec.processes,
        tasks_per_node=fullest,
        even=len(set(tasks.values())) == 1,
        cpus_per_task=cpus,
        overcommit=cores is not None and fullest > cores,
        gpus_per_node=gpus,
        gres=None if gpus is None or not slurm.gres else slurm.gres.replace("{gpus}", str(gpus)),
        memory=slurm.memory or ("0" if slurm.exclusive else None),
    )


def time_minutes(spec: RunSpec) -> int:
    """Limit of the job: hardware.slurm.time_minutes, or what the run may take and its start besides."""
    told = spec.config.hardware.slurm.time_minutes
    return told if told is not None else math.ceil((spec.config.measure.timeout_s + STARTING_S) / 60)


def rank_command(
    spec: RunSpec,
    folder: Path,
    module: str = "scalebench.runner.worker",
    hosts: Sequence[str] | None = None,
    bin: str | None = None,
) -> list[str]:
    """The srun that starts the agents of all ranks of `spec`, each of which runs `module`, from within the job.

    `hosts`: the node of each rank, in order; None: the job's nodes, which are not known yet. Where nodes have unequally
    many ranks, srun reads the hosts from the file that SLURM_HOSTFILE names.
    """
    shape, strategy, slurm = geometry(spec), spec.config.strategy, spec.config.hardware.slurm
    words = [
        str(Path(bin).expanduser() / "srun") if bin else "srun",
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.tasks}",
    ]
    if not shape.even:
        words.append("--distribution=arbitrary")
    else:
        words.append(f"--ntasks-per-node={shape.tasks_per_node}")
        if hosts is not None:  # an allocation may have more
            words.append(f"--nodelist={','.join(dict.fromkeys(hosts))}")
    words += [f"--cpus-per-task={shape.cpus_per_task}"]  # which a step no longer takes over from its job
    words += ["--overcommit"] if shape.overcommit else []
    words += ["--cpu-bind=none", "--kill-on-bad-exit=0"]  # ranks pin themselves, and say themselves why they failed
    if strategy.launcher == "mpi" and slurm.mpi != "mpirun":
        words.append(f"--mpi={slurm.mpi}")
    for name, value in parse(slurm.srun, "hardware.slurm.srun", STEP_OURS).items():
        words.append(f"--{name}" if value is True else f"--{name}={value}")
    words += srun_words(spec, folder)
    return [*words, *python(spec, folder), "-m", RANK_AGENT, str(folder.absolute()), module]


def _gpus_per_node(spec: RunSpec) -> int | None:
    """Up to the last one that is driven on any node: they are numbered within what SLURM gives."""
    driven = [device for place in spec.places for device in place.devices]
    return max(driven) + 1 if spec.device == "cuda" and driven else None
