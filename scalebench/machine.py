"""What this machine is: processors, memory, GPUs and software, for the record and for choosing devices.

Nothing here raises because the machine lacks something: what cannot be told is None (or left out), never 0.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalebench.gpus import Gpu, detect_gpus, or_none
from scalebench.gpus import gpu_count as gpu_count  # asked for next to usable_cpus

PACKAGES = "scalebench torch pytorch-lightning tensorflow tensorflow-cpu keras horovod numpy hydra-core"
VARIABLES = re.compile(
    r"(NCCL|HOROVOD|OMP|GLOO|TF|MKL|TORCH|PYTORCH|XLA|CUDA|CUDNN|CUBLAS|KMP|MALLOC)_|NVIDIA_TF32_OVERRIDE$"
)
# Records are shown to others, and Terraform too keeps its variables, passwords among them, under TF_.
PRIVATE = re.compile(r"^TF_(VAR|TOKEN|CLI)_|TOKEN|SECRET|PASSW|CREDENTIAL|_KEY")

_ROOT = Path("/")  # tests put a folder of their own here


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


def detect() -> Machine:
    """Look at everything once; tens of milliseconds, longer where the GPU driver has to wake up."""
    found = detect_gpus()
    return Machine(
        hostname=platform.node(),
        cpu_model=_find(r"^(?:model name|cpu)\s*:(.+)$", "proc/cpuinfo"),  # POWER says "cpu", Arm neither
        cpus=len(usable_cpus()),
        cpu_quota=cpu_quota(),
        cpus_physical=or_none(lambda: importlib.import_module("psutil").cpu_count(logical=False)),
        memory_bytes=or_none(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        numa_nodes=len(list((_ROOT / "sys/devices/system/node").glob("node[0-9]*"))) or None,
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


def usable_cpus() -> list[int]:
    """Numbers of the logical CPUs that this process may run on, sorted."""
    linux = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if linux else list(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """CPU seconds per second that the cgroups of this process allow (versions 1 and 2); None = no limit."""
    quotas: list[float] = []
    for folder in _cpu_cgroups():
        version_1 = f"{_read(folder, 'cpu.cfs_quota_us')} {_read(folder, 'cpu.cfs_period_us')}"
        # Without a match there is no limit: "max" in version 2, -1 in version 1.
        if found := re.match(r"(\d+)\s+([1-9]\d*)", _read(folder, "cpu.max") or version_1):
            quotas.append(int(found[1]) / int(found[2]))
    return min(quotas, default=None)


def oom_kills() -> int | None:
    """The kernel's count of processes killed for memory since boot, on the whole host, not only ours."""
    count = _find(r"^oom_kill (\d+)$", "proc/vmstat")
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


def _read(*path: str | Path) -> str:
    """A system file's text, '' where there is none or it may not be read."""
    try:
        return _ROOT.joinpath(*path).read_text(errors="replace")
    except OSError:
        return ""


def _find(pattern: str, *path: str) -> str | None:
    found = re.search(pattern, _read(*path), re.MULTILINE)
    return found[1].strip() if found else None


def _short(cpu_model: str | None) -> str:
    """'Intel(R) Xeon(R) CPU E5-2680 v3 @ 2.50GHz' -> 'Intel Xeon E5-2680 v3'."""
    return re.sub(r"\((R|TM|r|tm)\)| CPU\b| \d+-Core Processor| @.*", "", cpu_model or "unknown").strip()


def _cpu_cgroups() -> Iterator[Path]:
    """The cgroups of this process that may limit its CPU time, and all above them, which limit it as well."""
    for line in _read("proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "" or "cpu" in controllers.split(","):  # version 2 names no controllers
            # In a container the path may be the host's, and only its top mounted: missing ones are harmless.
            parts = path.strip("/").split("/")
            yield from (Path("sys/fs/cgroup", controllers, *parts[:n]) for n in range(len(parts) + 1))


def _versions() -> dict[str, str]:
    installed = {name: or_none(partial(importlib.metadata.version, name)) for name in PACKAGES.split()}
    return {name: version for name, version in installed.items() if version is not None}


def _environment() -> dict[str, str]:
    names = [name for name in sorted(os.environ) if VARIABLES.match(name) and not PRIVATE.search(name)]
    return {name: os.environ[name] for name in names}


def _container() -> str | None:
    # The innermost first: Apptainer may run inside the others, and a Kubernetes pod may show Docker's file.
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ:
        return "apptainer"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if (_ROOT / "run/.containerenv").exists():
        return "podman"
    return "docker" if (_ROOT / ".dockerenv").exists() else None
