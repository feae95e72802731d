"""The SLURM options of a run: checks of `hardware.slurm`, resources of the job, its container, the srun command."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.process import NODE_AGENT, build_python_command
from scalebench.core.spec import RunSpec, SlurmSpec
from scalebench.core.untrusted import clean_line

ARBITRARY = "--distribution=arbitrary"  # as the file that SLURM_HOSTFILE names says
TIME_FACTOR, MIN_LIMIT_S = 1.5, 1800.0  # of the time limit of a job, over the estimate of its runs
START_ALLOWANCE_S = 120.0  # time of a job besides its run: starting Python on all nodes, and writing the result
OPTION_PATTERN = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?")
NAME_KEYS = "partition account qos reservation constraint".split()
TEXTS = {  # the values of keys: a pattern, and what they should be
    **dict.fromkeys(NAME_KEYS, (r"[^\s-]\S*", "one word")),
    **dict.fromkeys(("container_python", "python", "bin"), (".+", "a path in one line")),
    "container": ("[^-].*", "an image, in one line"),
    "memory": (r"(?i)\d+([KMGT]B?)?", "a number and K, M, G or T, such as 64G"),
    "gres": (r"(?:[^\s{}]|\{gpus\})*", "one word such as gpu:{gpus}"),
}
# Options of sbatch that scalebench sets, and of the srun that starts the ranks. An option that both have is inherited
# from the job. An agent needs the GPUs of all ranks on its node.
RESERVED_OPTIONS = frozenset(
    [*NAME_KEYS, *"array cpus-per-task error exclusive gres job-name mem no-requeue nodes ntasks".split(),
     *"ntasks-per-node output overcommit parsable requeue time wait wrap".split()]
)  # fmt: skip
RESERVED_STEP_OPTIONS = frozenset(
    "container-image container-mounts cpu-bind cpus-per-task distribution error gpu-bind gpus-per-task "
    "kill-on-bad-exit mpi nodelist nodes ntasks ntasks-per-gpu ntasks-per-node output overcommit tres-bind "
    "tres-per-task".split()
)
# With these a user says how many threads of a core tasks get; srun and sbatch refuse some of them beside each other.
THREAD_OPTIONS = {"hint", "threads-per-core", "ntasks-per-core", "extra-node-info"}
WHOLE_CORES_HINT = "nomultithread"  # it implies --threads-per-core=1
CLEANING_OPTIONS = {"--cleanenv", "-e", "--containall", "-C"}  # of apptainer exec: no variable of the job is left


def check_slurm_options(slurm: SlurmSpec) -> None:
    """Raise InputError for values that no cluster accepts; whether this cluster has them only SLURM can say."""
    parse_options(slurm.lines)
    parse_options(slurm.srun, "hardware.slurm.srun", RESERVED_STEP_OPTIONS)
    parse_mounts(slurm.container_mounts)
    for key, (pattern, should) in TEXTS.items():
        value = getattr(slurm, key)
        if value is not None and not (re.fullmatch(pattern, value) and value.isprintable()):
            raise InputError(f"hardware.slurm.{key}='{value}' should be {should}")
    for option in slurm.container_options:
        if not option.startswith("-") or not option.isprintable():
            raise InputError(f"hardware.slurm.container_options: '{clean_line(option)}' should be an option, --name")
        if option in CLEANING_OPTIONS:
            raise InputError(
                f"hardware.slurm.container_options: {option} takes the variables of SLURM and of the agents from the "
                "container; unset others in hardware.slurm.setup"
            )


def parse_options(
    lines: Sequence[str], key: str = "hardware.slurm.lines", reserved: Container[str] = RESERVED_OPTIONS
) -> dict[str, str | bool]:
    """Return options by name, True for those without a value. InputError for other text and for reserved options."""
    options: dict[str, str | bool] = {}
    for line in lines:
        match = OPTION_PATTERN.fullmatch(line)
        if match is None or not line.isprintable():
            raise InputError(f"{key}: '{clean_line(line)}' should be --name=value or --name, in one line")
        name, value = match.groups()
        if name in reserved:
            raise InputError(f"{key}: --{name} comes from the run and the keys of hardware; leave it out here")
        options[name] = True if value is None else value
    return options


def parse_mounts(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return FROM and TO of each mount; TO includes flags such as :ro. InputError for other text."""
    mounts = []
    for mount in texts:
        match = re.fullmatch(r"(/[^:,\n]*):(/[^:,\n]*(?::[a-z,]+)?)", mount)
        if match is None:
            raise InputError(
                f"hardware.slurm.container_mounts: '{mount}' should be FROM:TO, both from the root, such as /data:/data"
            )
        mounts.append((match[1], match[2]))
    return mounts


def job_options(slurm: SlurmSpec, gpus_per_node: int | None = None) -> dict[str, str | bool]:
    """Return the further options of sbatch by name: those of hardware.slurm.lines, with the GPUs per node for {gpus}
    (without them if the job has none), and the one by which SLURM counts cores, as hardware.cpus_per_node does, unless
    the lines say how threads are counted.

    Where cores run two threads, SLURM would otherwise give a task of six CPUs three cores.
    """
    lines = [line for line in slurm.lines if gpus_per_node is not None or "{gpus}" not in line]
    options = parse_options([line.replace("{gpus}", str(gpus_per_node)) for line in lines])
    if not THREAD_OPTIONS & options.keys():
        options["hint"] = WHOLE_CORES_HINT
    return options


def container_options(spec: RunSpec, folder: Path) -> list[str]:
    """Return the options of srun that pyxis adds for a container; none without pyxis."""
    slurm = spec.config.hardware.slurm
    if slurm.container is None or slurm.container_runtime != "pyxis":
        return []
    options = [f"--container-image={slurm.container}", f"--container-mounts={','.join(_mount_options(spec, folder))}"]
    if _has_user_code(spec) and not any(line.startswith("--container-workdir") for line in slurm.srun):
        options.append(f"--container-workdir={os.getcwd()}")
    return options


def python_command(spec: RunSpec, folder: Path) -> list[str]:
    """Return the command that runs Python for a rank, in its container if there is one."""
    slurm = spec.config.hardware.slurm
    if slurm.container is None:
        return job_python_command(spec)
    if slurm.container_runtime == "pyxis":
        return [slurm.container_python, "-P"]
    gpus = ["--nv"] if spec.device == "cuda" and "--rocm" not in slurm.container_options else []
    binds = ["--bind", ",".join(_mount_options(spec, folder))]
    binds += ["--pwd", os.getcwd()] if _has_user_code(spec) else []
    options = [*gpus, *slurm.container_options, *binds]
    return [slurm.container_runtime, "exec", *options, slurm.container, slurm.container_python, "-P"]


def job_python_command(spec: RunSpec) -> list[str]:
    """Return the command that runs Python for the program of a job."""
    python = spec.config.hardware.slurm.python
    return build_python_command() if python is None else [python, "-P"]


def rank_folders(spec: RunSpec, folder: Path) -> list[Path]:
    """Return the folders that a rank reads and writes: of the run, of the data set, of the copy on the node, and of the
    user's code, which is imported from the current one."""
    dataset, node_copy = spec.config.dataset, spec.config.hardware.node_copy
    folders = [folder, dataset.cache or machine.cache_folder(), dataset.path, node_copy]
    folders += [os.getcwd()] if _has_user_code(spec) else []
    absolute = [Path(os.path.abspath(Path(path).expanduser())) for path in folders if path is not None]
    return list(dict.fromkeys(absolute))


def _has_user_code(spec: RunSpec) -> bool:
    return spec.config.model.code_digest is not None or spec.config.dataset.code_digest is not None


def _mount_options(spec: RunSpec, folder: Path) -> list[str]:
    paths = rank_folders(spec, folder)
    for path in paths:
        if set(",:") & set(str(path)):
            raise InputError(
                f"{path} cannot be mounted in a container: commas and colons separate mounts; choose another name"
            )
    further = [f"{source}:{target}" for source, target in parse_mounts(spec.config.hardware.slurm.container_mounts)]
    return [f"{path}:{path}" for path in paths] + further


@dataclass(frozen=True)
class JobGeometry:
    """The nodes, tasks, cores, GPUs and memory of a job; memory and GPUs are per node."""

    nodes: int
    tasks: int
    tasks_per_node: int  # on the fullest node
    even: bool  # the same number on each node
    cpus_per_task: int
    overcommit: bool  # more tasks on a node than it has cores
    gpus_per_node: int | None = None
    gres: str | None = None
    memory: str | None = None  # 0: all memory


def job_geometry(spec: RunSpec) -> JobGeometry:
    """Return the resources of the job for a run."""
    hardware = spec.config.hardware
    slurm, cores = hardware.slurm, hardware.cpus_per_node
    tasks = Counter(place.node for place in spec.places)
    fullest = max(tasks.values())
    cpus = hardware.cpus_per_device or 1
    if spec.config.strategy.processes == "one_for_all":
        cpus *= max(len(place.devices) for place in spec.places)
    if cores is not None:  # a task for each device, besides those of other roles
        cpus = max(1, min(cpus, cores // fullest))
    gpus = count_gpus_per_node(spec)
    return JobGeometry(
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


def sweep_geometry(specs: Sequence[RunSpec]) -> JobGeometry:
    """Return the resources of one job that does all these runs, each on the first nodes of the job: the most that any
    of them has."""
    runs = [job_geometry(spec) for spec in specs]
    gpus = max(runs, key=lambda run: run.gpus_per_node or 0)
    tasks, cores = max(run.tasks_per_node for run in runs), max(run.tasks_per_node * run.cpus_per_task for run in runs)
    if cores % tasks:
        tasks = 1  # steps lay out their tasks themselves
    nodes = max(run.nodes for run in runs)
    return JobGeometry(
        nodes, nodes * tasks, tasks, True, cores // tasks, any(run.overcommit for run in runs), gpus.gpus_per_node,
        gpus.gres, runs[0].memory,
    )  # fmt: skip


def time_limit_minutes(specs: Sequence[RunSpec], estimates_s: Sequence[float]) -> int:
    """Return the time limit of the job that does these runs: hardware.slurm.time_minutes, else by the most seconds that
    each is estimated to take, infinite where that is unknown, and the time to start.

    An estimate knows nothing of slow steps and of the nodes, so that no job gets less than MIN_LIMIT_S or the limit of
    its runs; no run takes longer than measure.timeout_s.
    """
    fixed = specs[0].config.hardware.slurm.time_minutes  # of all: they are those of one job
    if fixed is not None:
        return fixed
    timeouts_s = [spec.config.measure.timeout_s for spec in specs]
    limits_s = [min(TIME_FACTOR * most_s, limit_s) for most_s, limit_s in zip(estimates_s, timeouts_s, strict=True)]
    seconds = max(sum(limits_s), min(MIN_LIMIT_S, max(timeouts_s)))
    return math.ceil((seconds + START_ALLOWANCE_S) / 60)


def srun_command(
    spec: RunSpec,
    folder: Path,
    address: str = "HOST:PORT",
    hosts: Sequence[str] | None = None,
    bin: str | None = None,
) -> list[str]:
    """Return the srun that starts, from within the job, an agent on each node, which connects to `address`; one for
    each rank where srun starts MPI's ranks.

    `hosts` has the node of each rank, in order; None means the job's nodes, which are not known yet. For the ranks of
    MPI srun reads them from the file that SLURM_HOSTFILE names.

    Nothing is said about cores and GPUs: a step has those of its job, and each rank takes its own. With a number of
    cores SLURM would count those that run two threads. With --gpu-bind=none it would not set CUDA_VISIBLE_DEVICES
    (22.05), and ranks would see GPUs of other jobs where no cgroup hides them; --gpu-bind=closest leaves out GPUs of
    another socket.
    """
    geometry, slurm = job_geometry(spec), spec.config.hardware.slurm
    by_rank = spec.config.strategy.launcher == "mpi" and slurm.mpi != "mpirun"
    command = [
        str(Path(bin).expanduser() / "srun") if bin else "srun",
        f"--nodes={geometry.nodes}",
        f"--ntasks={geometry.tasks if by_rank else geometry.nodes}",
        ARBITRARY if by_rank else "--ntasks-per-node=1",
        # An allocation may have more nodes.
        *([] if hosts is None or by_rank else [f"--nodelist={','.join(dict.fromkeys(hosts))}"]),
        *(["--overcommit"] if by_rank and geometry.overcommit else []),
        *("--cpu-bind=none", "--kill-on-bad-exit=0"),  # ranks pin themselves, and agents report their failures
        *([f"--mpi={slurm.mpi}"] if by_rank else []),
    ]
    for name, value in parse_options(slurm.srun, "hardware.slurm.srun", RESERVED_STEP_OPTIONS).items():
        command.append(f"--{name}" if value is True else f"--{name}={value}")
    command += [*container_options(spec, folder), *python_command(spec, folder), "-m", NODE_AGENT, address]
    return [*command, *([] if by_rank else ["--node", "SLURMD_NODENAME"])]


def count_gpus_per_node(spec: RunSpec) -> int | None:
    """Return the GPUs per node up to the highest index in use: indices count within what SLURM allocates."""
    devices = [device for place in spec.places for device in place.devices]
    return max(devices) + 1 if spec.device == "cuda" and devices else None
