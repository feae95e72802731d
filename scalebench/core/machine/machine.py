"""What this machine is: processors, memory, GPUs and software, for the record and for choosing devices.

Nothing here raises because the machine lacks something: what cannot be told is None (or left out), never 0.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalebench.core.machine import cpus as processors
from scalebench.core.machine import cpus as system_files
from scalebench.core.machine.cpus import NumaNode, cpu_quota, memory_limit_bytes
from scalebench.core.machine.cpus import numa_nodes as numa_nodes
from scalebench.core.machine.cpus import usable_cpus as usable_cpus
from scalebench.core.machine.gpus import Gpu, detect_gpus, or_none
from scalebench.core.machine.gpus import gpu_count as gpu_count  # asked for next to usable_cpus
from scalebench.core.machine.gpus import gpu_numa_nodes as gpu_numa_nodes
from scalebench.core.machine.gpus import pair_of_each_link as pair_of_each_link

PACKAGES = "scalebench torch pytorch-lightning tensorflow tensorflow-cpu keras horovod numpy hydra-core"
VARIABLES = re.compile(
    r"(NCCL|HOROVOD|OMP|GLOO|TF|MKL|TORCH|PYTORCH|XLA|CUDA|CUDNN|CUBLAS|KMP|MALLOC)_|NVIDIA_TF32_OVERRIDE$"
)
# What a record shows besides: how MPI and UCX are set, and what a batch system has given.
ALSO_SHOWN = re.compile(
    r"(OMPI_MCA|PRTE_MCA|PMIX_MCA|UCX|I_MPI|MPICH|FI)_|LD_PRELOAD$|"
    r"SLURM_(CLUSTER_NAME|CPUS?_|DISTRIBUTION$|GPUS?_|GPUS$|GRES|HINT$|JOB_(ID|NODELIST|NUM_NODES|PARTITION|CPUS|GPUS|QOS)|"
    r"JOBID$|LOCALID$|MEM_|NNODES$|NODELIST$|NPROCS$|NTASKS|PROCID$|STEP_GPUS$|TASKS_PER|THREADS_PER|TRES_PER)"
)
# Records are shown to others, and Terraform too keeps its variables, passwords among them, under TF_.
PRIVATE = re.compile(r"^TF_(VAR|TOKEN|CLI)_|TOKEN|SECRET|PASSW|CREDENTIAL|_KEY")
ASK_MPI_S = 2.0


@dataclass(frozen=True)
class Machine:
    """This machine and its software. `gpus` are all that NVML shows, whatever CUDA_VISIBLE_DEVICES hides."""

    hostname: str
    cpu_model: str | None
    cpus: int  # usable by this process
    cpu_quota: float | None  # CPUs' worth of time per second; None = no limit
    cpus_physical: int | None  # cores of the whole machine, without their second threads
    memory_bytes: int | None
    numa_nodes: int | None
    gpus: list[Gpu]
    topology: list[list[str]] | None  # word per GPU pair: X, NV#, PIX, PXB, PHB, NODE, SYS
    driver_version: str | None
    cuda_driver_version: str | None
    os: str
    python: str
    versions: dict[str, str]
    environment: dict[str, str]
    git_commit: str | None
    container: str | None
    cpu_sockets: int | None = None  # of the whole machine
    cpus_allowed: list[int] | None = None  # numbers of those usable by this process
    cpu_governors: list[str] | None = None  # of those: performance, powersave, schedutil; several where they differ
    cpu_max_mhz: float | None = None
    smt: bool | None = None  # cores run several threads each
    numa: list[NumaNode] | None = None
    memory_limit_bytes: int | None = None  # of the cgroups; None = no limit
    kernel: str | None = None
    mpi: str | None = None  # what mpirun --version says first
    peer_access: dict[str, list[list[str]]] | None = None  # read, write, nvlink, atomics: word per GPU pair, OK is yes


def detect() -> Machine:
    """Look at everything once; tens of milliseconds, longer where the GPU driver has to wake up."""
    found, cpus, nodes = detect_gpus(), usable_cpus(), numa_nodes()
    return Machine(
        hostname=platform.node(),
        cpu_model=system_files.find(r"^(?:model name|cpu)\s*:(.+)$", "proc/cpuinfo"),  # POWER says "cpu", Arm neither
        cpus=len(cpus),
        cpu_quota=cpu_quota(),
        cpus_physical=or_none(lambda: importlib.import_module("psutil").cpu_count(logical=False)),
        memory_bytes=or_none(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        numa_nodes=len(nodes) or None,
        gpus=found.gpus,
        topology=found.topology,
        driver_version=found.driver_version,
        cuda_driver_version=found.cuda_driver_version,
        os=platform.platform(),
        python=platform.python_version(),
        versions=_versions(),
        environment=_environment(),
        git_commit=git_commit(),
        container=_container(),
        cpu_sockets=processors.sockets(),
        cpus_allowed=cpus,
        cpu_governors=processors.governors(cpus),
        cpu_max_mhz=processors.frequency_max_mhz(cpus),
        smt=processors.smt(),
        numa=nodes or None,
        memory_limit_bytes=memory_limit_bytes(),
        kernel=platform.release() or None,
        mpi=mpi_version(),
        peer_access=found.peer_access,
    )


def describe(machine: Machine) -> str:
    """One line for people, such as '8 x NVIDIA A100-SXM4-40GB, 48 cores, 1000 GiB'."""
    names = Counter(gpu.name or "unknown GPU" for gpu in machine.gpus)
    gpus = " + ".join(f"{count} x {name}" for name, count in names.items())
    cores = f"{machine.cpus} cores" if gpus else f"{machine.cpus} x {_short(machine.cpu_model)} cores"
    quota = machine.cpu_quota
    cores += f" (quota {quota:g})" if quota is not None and quota < machine.cpus else ""
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes is not None else ""
    return ", ".join(part for part in (gpus, cores, memory, "" if gpus else "no GPU") if part)


def cache_folder() -> Path:
    """Where files are kept that can be made again: $SCALEBENCH_CACHE, else scalebench in the user's cache folder."""
    chosen = os.environ.get("SCALEBENCH_CACHE")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scalebench").expanduser()


def oom_kills() -> int | None:
    """The kernel's count of processes killed for memory since boot, on the whole host, not only ours."""
    count = system_files.find(r"^oom_kill (\d+)$", "proc/vmstat")
    return None if count is None else int(count)


def git_commit(folder: Path | None = None) -> str | None:
    """Commit checked out in `folder` (None: the working directory), '-dirty' if tracked files differ."""
    # Without --no-optional-locks git would refresh the index file, under the hands of whoever works there.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=64", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2.0, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, no commit, a slow disk
        return None
    return done.stdout.strip()


def mpi_version() -> str | None:
    """The first line of `mpirun --version`; None without an mpirun, or where it takes too long to say."""
    path = shutil.which("mpirun")
    return None if path is None else _mpi_version(path)


@functools.lru_cache  # it costs more than all else here, and every run asks
def _mpi_version(path: str) -> str | None:
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_MPI_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), None)


def _short(cpu_model: str | None) -> str:
    """'Intel(R) Xeon(R) CPU E5-2680 v3 @ 2.50GHz' -> 'Intel Xeon E5-2680 v3'."""
    return re.sub(r"\((R|TM|r|tm)\)| CPU\b| \d+-Core Processor| @.*", "", cpu_model or "unknown").strip()


def _versions() -> dict[str, str]:
    installed = {name: or_none(partial(importlib.metadata.version, name)) for name in PACKAGES.split()}
    return {name: version for name, version in installed.items() if version is not None}


def _environment() -> dict[str, str]:
    shown = (name for name in sorted(os.environ) if VARIABLES.match(name) or ALSO_SHOWN.match(name))
    return {name: os.environ[name] for name in shown if not PRIVATE.search(name)}


def _container() -> str | None:
    # The innermost first: Apptainer may run inside the others, and a Kubernetes pod may show Docker's file.
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ:
        return "apptainer"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if (system_files.ROOT / "run/.containerenv").exists():
        return "podman"
    return "docker" if (system_files.ROOT / ".dockerenv").exists() else None
