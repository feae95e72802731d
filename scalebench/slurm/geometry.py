"""What a run asks of SLURM: nodes, tasks, cores, GPUs, memory and time, and the step that starts its ranks. Layer 2."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.slurm import container
from scalebench.slurm.options import STEP_OURS, parse
from scalebench.slurm.options import check as check
from scalebench.spec import RunSpec

RANK_AGENT = "scalebench.launchers.mpi_rank"  # the module that srun and mpirun start for each rank
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
    module: str = "scalebench.worker",
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
    words += container.srun_words(spec, folder)
    return [*words, *container.python(spec, folder), "-m", RANK_AGENT, str(folder.absolute()), module]


def _gpus_per_node(spec: RunSpec) -> int | None:
    """Up to the last one that is driven on any node: they are numbered within what SLURM gives."""
    driven = [device for place in spec.places for device in place.devices]
    return max(driven) + 1 if spec.device == "cuda" and driven else None
