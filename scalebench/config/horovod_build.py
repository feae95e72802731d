"""Inspect the installed Horovod: for which frameworks it was built, and with which transports.

Two installations of one version differ: each was compiled for the PyTorch, TensorFlow, MPI and NCCL of its machine.
One that was built for another framework, or another version, is reported before a run starts. No framework is imported
in this process; what only an import shows, the ranks check when they join their group (strategies/horovod/group.py).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path

from scalebench.core.machine import cuda_builds, machine
from scalebench.core.process import ask_python

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
TRANSPORTS = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
INSTALL = "scalebench install horovod"
REBUILD = f"{INSTALL} rebuilds it"
# On a machine with GPUs the build leaves TensorFlow out, unless NCCL is disabled.
FRAMEWORK_REMEDIES = {"torch": REBUILD, "tensorflow": f"HOROVOD_GPU_OPERATIONS=none {REBUILD}"}
MAX_PROBE_S = 120.0
PROBE_SCRIPT = """
import importlib, sys
horovod = importlib.import_module("horovod." + sys.argv[1])
print("ANSWER", *[name for name in sys.argv[2:] if getattr(horovod, name + "_built")()])
"""
METADATA_KEYS = {"torch": "pytorch", "tensorflow": "tensorflow"}  # of Horovod's metadata.json
EXTENSION_PATTERNS = {"torch": "mpi_lib_v2*.so", "tensorflow": "mpi_lib*.so"}
# The MPI of each number of its library, and what the first line of its `mpirun --version` contains. MPICH's ABI is also
# Intel's.
MPI_LIBRARY = re.compile(rb"libmpi(?:ch)?\.so\.(40|12)\b")
MPI_BY_NUMBER = {b"40": "Open MPI", b"12": "MPICH"}
MPIRUN_NAMES = {"Open MPI": ("Open MPI", "OpenRTE"), "MPICH": ("HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH")}
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")


def find_horovod_problem(framework: str, transport: str | None, launcher: str) -> str | None:
    """Explain in a clause with the way out why a strategy cannot run with the installed Horovod; None when it can.

    `transport` carries the gradients (None and "auto": whichever is available), `launcher` is "local" or "mpi". The
    ranks themselves check the transports of their build, each on its host.
    """
    if transport == "gloo" and launcher == "mpi":
        return "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    if transport == "mpi" and launcher != "mpi":
        return "Horovod's MPI operations need processes that mpirun started: use strategy.launcher=mpi"
    return find_build_problem(framework) or (find_mpi_problem(framework) if launcher == "mpi" else None)


def find_mpi_problem(framework: str) -> str | None:
    """Explain why the mpirun on the PATH is of another MPI than Horovod: each rank would be a group of its own."""
    folder, version = cuda_builds.find_package("horovod"), machine.mpi_version()
    extension = None if folder is None else next((folder / framework).glob(EXTENSION_PATTERNS[framework]), None)
    linked = None if extension is None else MPI_LIBRARY.search(extension.read_bytes())
    kinds = [kind for kind, names in MPIRUN_NAMES.items() if any(name in (version or "") for name in names)]
    if linked is None or not kinds or (built_with := MPI_BY_NUMBER[linked[1]]) in kinds:
        return None
    return (
        f"the mpirun on the PATH is of {kinds[0]}, and Horovod was built with {built_with}: put the mpirun of "
        f"{built_with} first on the PATH; {REBUILD}"
    )


def find_build_problem(framework: str) -> str | None:
    """Explain likewise why the installed Horovod cannot be used with "torch" or "tensorflow"."""
    folder = cuda_builds.find_package("horovod")
    if folder is None:
        return f"Horovod is not installed: {INSTALL} builds it"
    try:
        built_for = json.loads((folder / "metadata.json").read_text(encoding="utf-8")).get(METADATA_KEYS[framework])
    except (OSError, ValueError, AttributeError):
        built_for = None
    built = f"Horovod {_installed_version('horovod') or 'of unknown version'} was built"
    if built_for is None or not any((folder / framework).glob(EXTENSION_PATTERNS[framework])):
        return f"{built} without {FRAMEWORKS[framework]}: {FRAMEWORK_REMEDIES[framework]}"
    installed = detect_framework_version(framework)
    if installed is None:
        return f"{built} for {framework} {built_for}, which is not installed"
    if built_for.replace("-", "") != installed.replace("-", ""):  # TensorFlow reports 2.21.0-rc1, its package 2.21.0rc1
        return f"{built} for {framework} {built_for}, and {installed} is installed: {REBUILD}"
    return None


def describe_horovod(framework: str) -> tuple[str, bool]:
    """Return one line for people, such as 'Horovod 0.28.1 with PyTorch 2.13.0+cpu: MPI, Gloo (no NCCL)', and whether
    it can be used. The framework is imported in a process of its own, which takes seconds."""
    if cuda_builds.find_package("horovod") is None:
        return "Horovod is not installed", False
    version, problem = _installed_version("horovod") or "of unknown version", find_build_problem(framework)
    build = f"Horovod {version} with {FRAMEWORKS[framework]}"
    if problem is not None:
        return f"{build}: no ({problem})", False
    features, reason = ask_python(PROBE_SCRIPT, framework, *TRANSPORTS, limit_s=MAX_PROBE_S)
    if features is None:
        return f"{build}: no (Horovod {version} does not import with {framework}: {reason}; {REBUILD})", False
    present = ", ".join(text for name, text in TRANSPORTS.items() if name in features)
    missing = ", ".join(text for name, text in TRANSPORTS.items() if name not in features)
    return f"{build} {detect_framework_version(framework)}: {present}{f' (no {missing})' if missing else ''}", True


def detect_framework_version(framework: str) -> str | None:
    """Return the version that the framework reports, without importing it; None when it is not installed."""
    if framework == "torch":
        return cuda_builds.read_torch_version("__version__") or _installed_version("torch")
    versions = map(_installed_version, TENSORFLOW_DISTRIBUTIONS)
    return next((version for version in versions if version is not None), None)


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_nccl_package() -> Path | None:
    """Return the folder of the NCCL that PyTorch's wheels for CUDA bring, with its headers; None where it is not
    installed."""
    folders = [Path(folder, "nvidia", "nccl") for folder in sys.path]
    needed = ("include/nccl.h", "lib/libnccl.so.2")
    return next((folder for folder in folders if all((folder / path).exists() for path in needed)), None)


def describe_environment() -> str:
    """Return, in one line, what a build depends on and what is installed, each "none" where it is missing.

    Python's ABI, the version of PyTorch, that of its CUDA or "cpu", the version of TensorFlow, a digest of the
    installed Horovod, and the folder of NCCL's package. Horovod's list of files holds their checksums, and so differs
    between two builds of one version.
    """
    torch, tensorflow = (detect_framework_version(name) or "none" for name in ("torch", "tensorflow"))
    try:
        files = importlib.metadata.distribution("horovod").read_text("RECORD") or ""
        digest = hashlib.sha256(files.encode()).hexdigest()[:16]
    except importlib.metadata.PackageNotFoundError:
        digest = "none"
    cuda, nccl = cuda_builds.read_torch_version("cuda") or "cpu", find_nccl_package() or "none"
    return f"{sys.implementation.cache_tag} {torch} {cuda} {tensorflow} {digest} {nccl}"


def main(frameworks: list[str]) -> int:
    """Print a line for each framework, else what a build depends on. Return 1 when Horovod is unusable with one."""
    if not frameworks:
        print(describe_environment())
    answers = [describe_horovod(framework) for framework in frameworks]
    print(*(line for line, _ in answers), sep="\n", end="\n" if answers else "")
    return int(not all(is_usable for _, is_usable in answers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
