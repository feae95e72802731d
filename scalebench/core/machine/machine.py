"""The facts of this machine, for the record and for choosing devices, and the class of machines that it belongs to.

Nothing here raises because the machine lacks something: what cannot be determined is None (or left out), never 0.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalebench import __version__
from scalebench.core.errors import InputError
from scalebench.core.machine import cpus
from scalebench.core.machine.cpus import NumaNode, memory_limit_bytes
from scalebench.core.machine.cpus import cpu_quota as cpu_quota
from scalebench.core.machine.cpus import first_threads as first_threads
from scalebench.core.machine.cpus import numa_nodes as numa_nodes
from scalebench.core.machine.cpus import order_by_core as order_by_core
from scalebench.core.machine.cpus import usable_cpus as usable_cpus
from scalebench.core.machine.gpus import Gpu, detect_gpus, value_or_none
from scalebench.core.machine.gpus import count_amd_gpus as count_amd_gpus
from scalebench.core.machine.gpus import count_gpus as count_gpus  # exported here like usable_cpus
from scalebench.core.machine.gpus import find_hidden_gpus as find_hidden_gpus
from scalebench.core.machine.gpus import find_nvml_problem as find_nvml_problem
from scalebench.core.machine.gpus import find_unsupported_gpus as find_unsupported_gpus
from scalebench.core.machine.gpus import gpu_numa_nodes as gpu_numa_nodes
from scalebench.core.machine.gpus import has_chosen_no_gpu as has_chosen_no_gpu
from scalebench.core.machine.gpus import pair_of_each_link as pair_of_each_link
from scalebench.core.machine.variables import select_recorded

PACKAGES = "torch pytorch-lightning accelerate deepspeed tensorflow tensorflow-cpu keras horovod numpy hydra-core"
MPI_VERSION_TIMEOUT_S = 2.0
GIB = 2**30
# Variables and files that tell of a container, the innermost first: Apptainer may run inside the others, and a pod of
# Kubernetes may have Docker's file.
CONTAINER_SIGNS = {
    "APPTAINER_CONTAINER": "apptainer", "SINGULARITY_CONTAINER": "apptainer", "KUBERNETES_SERVICE_HOST": "kubernetes",
    "run/.containerenv": "podman", ".dockerenv": "docker",
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """This machine and its software. `gpus` are all that NVML shows, whatever CUDA_VISIBLE_DEVICES hides."""

    hostname: str
    cpu_model: str | None
    cpus: int  # usable by this process
    cpu_quota: float | None  # CPU seconds per second; None = no limit
    cpus_physical: int | None  # cores of the whole machine, without their second threads
    memory_bytes: int | None
    numa_nodes: int | None
    gpus: list[Gpu]
    topology: list[list[str]] | None  # by GPU pair: X, NV#, PIX, PXB, PHB, NODE, SYS
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
    mpi: str | None = None  # first line of mpirun --version
    peer_access: dict[str, list[list[str]]] | None = None  # read, write, nvlink, atomics: by GPU pair, OK is yes

    def list_links(self, devices: Sequence[int]) -> list[str]:
        """Return the kinds of connection between these devices, in the words of `topology`, each once.

        It is empty if they are unknown, and where CUDA_VISIBLE_DEVICES gives devices other numbers than GPUs.
        """
        matrix = self.topology or []
        if "CUDA_VISIBLE_DEVICES" in self.environment or any(b >= len(words) for words in matrix for b in devices):
            return []
        return list(dict.fromkeys(matrix[a][b] for a in devices for b in devices if a < b < len(matrix)))


def detect_machine(variables: Mapping[str, str] = os.environ) -> Machine:
    """Determine all facts once; tens of milliseconds, longer where the GPU driver has to wake up. `variables` are those
    of the processes that are measured."""
    cpus_allowed, nodes = usable_cpus(), numa_nodes()
    installed = {name: value_or_none(partial(importlib.metadata.version, name)) for name in PACKAGES.split()}
    signs = CONTAINER_SIGNS.items()
    return Machine(
        hostname=platform.node(),
        # POWER has "cpu", Arm neither.
        cpu_model=cpus.find_in_system_file(r"^(?:model name|cpu)\s*:(.+)$", "proc/cpuinfo"),
        cpus=len(cpus_allowed),
        cpu_quota=cpu_quota(),
        cpus_physical=value_or_none(lambda: importlib.import_module("psutil").cpu_count(logical=False)),
        memory_bytes=value_or_none(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        numa_nodes=len(nodes) or None,
        **vars(detect_gpus()),
        os=platform.platform(),
        python=platform.python_version(),
        # The scalebench that runs: beside a checkout on PYTHONPATH another one may be installed, or none.
        versions={"scalebench": __version__, **{name: text for name, text in installed.items() if text is not None}},
        environment=select_recorded(variables),
        git_commit=git_commit(),
        container=next((n for sign, n in signs if sign in os.environ or (cpus.SYSTEM_ROOT / sign).exists()), None),
        **cpus.describe_cpus(cpus_allowed),
        cpus_allowed=cpus_allowed,
        numa=nodes or None,
        memory_limit_bytes=memory_limit_bytes(),
        kernel=platform.release() or None,
        mpi=mpi_version(),
    )


def describe_machine(machine: Machine) -> str:
    """Return one line for people, such as '8 x NVIDIA A100-SXM4-40GB, 48 cores, 1000 GiB'."""
    names = Counter(gpu.name or "unknown GPU" for gpu in machine.gpus)
    gpus = " + ".join(f"{count} x {name}" for name, count in names.items())
    # 'Intel Xeon E5-2680 v3' for 'Intel(R) Xeon(R) CPU E5-2680 v3 @ 2.50GHz'
    cpu_model = re.sub(r"\((R|TM|r|tm)\)| CPU\b| \d+-Core Processor| @.*", "", machine.cpu_model or "unknown").strip()
    cores = f"{machine.cpus} cores" if gpus else f"{machine.cpus} x {cpu_model} cores"
    quota = machine.cpu_quota
    cores += f" (quota {quota:g})" if quota is not None and quota < machine.cpus else ""
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes is not None else ""
    return ", ".join(part for part in (gpus, cores, memory, "" if gpus else "no GPU") if part)


def count_usable_cores() -> int:
    """Return the number of logical CPUs whose time this process may use up, at least 1: a quota, as a container has it,
    leaves all of them visible."""
    quota = cpu_quota()
    return len(usable_cpus()) if quota is None else max(1, min(len(usable_cpus()), int(quota)))


def find_cache_folder() -> Path | None:
    """Return the folder of reproducible files: $SCALEBENCH_CACHE, else scalebench in the user's cache folder; None for
    a user without a home folder, as many containers have one."""
    chosen = os.environ.get("SCALEBENCH_CACHE")
    try:
        return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scalebench").expanduser()
    except RuntimeError:
        return None


def cache_folder() -> Path:
    """Return the same folder. Raises InputError where there is none."""
    folder = find_cache_folder()
    if folder is None:
        raise InputError("this user has no home folder to keep data sets in: set SCALEBENCH_CACHE to a folder")
    return folder


def find_file_system(path: Path) -> str | None:
    """Return the type of the file system of a path, that of the deepest mount above it, or None if unknown."""
    parts = importlib.import_module("psutil").disk_partitions(all=True)
    above = [(len(Path(part.mountpoint).parts), part.fstype) for part in parts if path.is_relative_to(part.mountpoint)]
    return max(above, key=lambda mount: mount[0])[1] if above else None


def oom_kills() -> int | None:
    """Return how many processes the kernel killed for memory since boot, on the host and not only of this run."""
    count = cpus.find_in_system_file(r"^oom_kill (\d+)$", "proc/vmstat")
    return None if count is None else int(count)


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit checked out in `folder` (None: working directory), with '-dirty' if tracked files differ."""
    # Without --no-optional-locks git would refresh the index file while somebody may be working there.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=64", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2.0, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, no commit, a slow disk
        return None
    return done.stdout.strip()


def mpi_version() -> str | None:
    """Return the first line of `mpirun --version`; None without mpirun, or where it takes too long."""
    return _read_first_line(path, "--version") if (path := shutil.which("mpirun")) is not None else None


@functools.lru_cache  # slower than everything else here, and needed by every run
def _read_first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MPI_VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), None)


@dataclass(frozen=True)
class MachineClass:
    """A type of machine: what its speed depends on, but neither host name nor software."""

    cpu_model: str | None
    cores: float | None  # usable ones, or the container's quota where that is less
    memory_gib: float | None
    gpus: dict[str, int]  # number by name

    @property
    def fingerprint(self) -> str:
        """12 hex digits that are equal for equal types of machines."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        gpus = ", ".join(f"{count} x {name}" for name, count in self.gpus.items()) or "no GPU"
        cores = "unknown cores" if self.cores is None else f"{self.cores:g} cores"
        memory = "unknown memory" if self.memory_gib is None else f"about {self.memory_gib:g} GiB"
        return f"cpu {self.cpu_model or 'unknown'}, {cores}, {memory}, {gpus}"


def classify_machine(machine: Machine) -> MachineClass:
    """Return the type of a machine. Its memory is the nearest of 2^k and 1.5 x 2^k GiB: what kernel and firmware
    reserve makes no other type."""
    cores = float(machine.cpus if machine.cpu_quota is None else min(machine.cpus, machine.cpu_quota))
    names = Counter(gpu.name or "unknown GPU" for gpu in machine.gpus)
    memory_gib = None
    if machine.memory_bytes and machine.memory_bytes > 0:
        exact = machine.memory_bytes / GIB
        lower = 2.0 ** math.floor(math.log2(exact))
        memory_gib = min((lower, 1.5 * lower, 2 * lower), key=lambda size_gib: abs(math.log(exact / size_gib)))
    return MachineClass(machine.cpu_model, cores, memory_gib, dict(sorted(names.items())))
