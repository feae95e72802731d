"""Inspect the installed Horovod: for which frameworks it was built, and with which transports.

Two installations of one version differ: each was compiled for the PyTorch, TensorFlow, MPI and NCCL of its machine.
An unsuitable one is reported before a run starts, not as an import error in rank 3. No framework is imported in this
process.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.machine import cuda_builds
from scalebench.core.machine.machine import find_cache_folder
from scalebench.core.process import build_python_command

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
TRANSPORTS = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
FEATURES = (*TRANSPORTS, "cuda")
INSTALL = "scalebench install horovod"
REBUILD = f"{INSTALL} builds it anew"
TRANSPORT_REMEDIES = {
    "mpi": f"apt-get install openmpi-bin libopenmpi-dev, then {INSTALL}",
    "gloo": REBUILD,
    "nccl": f"HOROVOD_GPU_OPERATIONS=NCCL {INSTALL}, on a machine with nvcc and NCCL",
}
# On a machine with GPUs the build leaves TensorFlow out, unless NCCL is disabled.
NO_TENSORFLOW_NCCL = "its operations for it do not compile with TensorFlow; use strategy=multiworker_nccl"
FRAMEWORK_REMEDIES = {"torch": REBUILD, "tensorflow": f"HOROVOD_GPU_OPERATIONS=none {REBUILD}"}
# Horovod decides when it is built how tensors travel between GPUs (CreateOperationManager in its operations.cc).
NCCL_CARRIES_ALL = (
    "was built with NCCL, which then carries all gradients on GPUs: use strategy=horovod_nccl, or for {} "
    f"HOROVOD_GPU_OPERATIONS=none {INSTALL}"
)
# Without CUDA the copy of a gradient to host memory is started, and its end is not waited for before the gradient is
# sent (DoAllreduceCudaOnCPU in its mpi_ops_v2.cc): ranks would average what was in that memory before.
NO_CUDA = (
    "was built without CUDA, and would average gradients on GPUs before they are copied: with nvcc of the CUDA version "
    f"of PyTorch on the PATH, {REBUILD}"
)
MAX_PROBE_S = 120.0
PROBE_SCRIPT = """
import importlib, json, sys
horovod = importlib.import_module("horovod." + sys.argv[1])
print("HOLDS", json.dumps([name for name in sys.argv[2:] if getattr(horovod, name + "_built")()]))
"""
METADATA_KEYS = {"torch": "pytorch", "tensorflow": "tensorflow"}  # of Horovod's metadata.json
EXTENSION_PATTERNS = {"torch": "mpi_lib_v2*.so", "tensorflow": "mpi_lib*.so"}
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")


@dataclass(frozen=True)
class HorovodBuild:
    """The installed Horovod as one framework can use it."""

    version: str
    built_for: str | None  # version of the framework; None: its part was left out
    features: tuple[str, ...]  # those of FEATURES that it has; empty where there is a problem
    problem: str | None  # why it cannot be used with this framework, in a clause with the way out


@dataclass
class CachedFeatures:
    """The content of a cache file."""

    features: list[str]


@functools.cache
def inspect_horovod(framework: str) -> HorovodBuild | None:
    """Inspect the installed Horovod for "torch" or "tensorflow"; None when it is not installed.

    The first time this takes a few seconds, in a process that imports the framework; the cache folder keeps the result.
    """
    folder = cuda_builds.find_package("horovod")
    if folder is None:
        return None
    version = _installed_version("horovod") or "of unknown version"
    built_for, problem = _check_framework(framework, folder, version)
    if problem is not None:
        return HorovodBuild(version, built_for, (), problem)
    extension = next((folder / framework).glob(EXTENSION_PATTERNS[framework]))
    path = _cache_path(framework, extension, version)
    cached = None if path is None else _read_cache(path)
    if cached is None:
        probed = _probe(framework)
        if isinstance(probed, str):  # not cached: a missing library, for example, may be there the next time
            problem = f"Horovod {version} does not import with {framework}: {probed}; {REBUILD}"
            return HorovodBuild(version, built_for, (), problem)
        cached = probed
        if path is not None:
            _write_cache(path, cached)
    return HorovodBuild(version, built_for, tuple(cached.features), None)


def find_horovod_problem(framework: str, transport: str | None, launcher: str, devices: str = "cpu") -> str | None:
    """Explain in a clause with the way out why a strategy cannot run with the installed Horovod; None when it can.

    `transport` carries the gradients (None and "auto": whichever is available), `launcher` is "local" or "mpi", and
    `devices` "cpu" or "cuda".
    """
    if transport == "gloo" and launcher == "mpi":
        return "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    if transport == "mpi" and launcher != "mpi":
        return "Horovod's MPI operations need processes that mpirun started: use strategy.launcher=mpi"
    build = inspect_horovod(framework)
    if build is None:
        return f"Horovod is not installed: {INSTALL} builds it"
    if build.problem is not None:
        return build.problem
    # The processes connect over MPI or Gloo, whatever carries the gradients then.
    for name in ("mpi" if launcher == "mpi" else "gloo", transport):
        if name in TRANSPORTS and name not in build.features:
            way_out = NO_TENSORFLOW_NCCL if (framework, name) == ("tensorflow", "nccl") else TRANSPORT_REMEDIES[name]
            return f"Horovod {build.version} was built without {TRANSPORTS[name]}: {way_out}"
    if devices == "cuda" and transport in ("gloo", "mpi") and "nccl" in build.features:
        return f"Horovod {build.version} {NCCL_CARRIES_ALL.format(TRANSPORTS[transport])}"
    if devices == "cuda" and framework == "torch" and "cuda" not in build.features:
        return f"Horovod {build.version} {NO_CUDA}"
    return None


def describe_horovod(framework: str) -> str:
    """Return one line for people, such as 'Horovod 0.28.1 with PyTorch 2.13.0+cpu: MPI, Gloo (no NCCL)'."""
    build = inspect_horovod(framework)
    if build is None:
        return "Horovod is not installed"
    if build.problem is not None:
        return f"Horovod {build.version} with {FRAMEWORKS[framework]}: no ({build.problem})"
    present = ", ".join(text for name, text in TRANSPORTS.items() if name in build.features)
    missing = ", ".join(text for name, text in TRANSPORTS.items() if name not in build.features)
    without = f" (no {missing})" if missing else ""
    return f"Horovod {build.version} with {FRAMEWORKS[framework]} {build.built_for}: {present}{without}"


def detect_framework_version(framework: str) -> str | None:
    """Return the version that the framework reports, without importing it; None when it is not installed."""
    if framework == "torch":
        return cuda_builds.read_torch_version("__version__") or _installed_version("torch")
    versions = map(_installed_version, TENSORFLOW_DISTRIBUTIONS)
    return next((version for version in versions if version is not None), None)


def _check_framework(framework: str, folder: Path, version: str) -> tuple[str | None, str | None]:
    """Return (version of the framework that Horovod was built for, why it is useless now); either may be None."""
    try:
        built_for = json.loads((folder / "metadata.json").read_text(encoding="utf-8")).get(METADATA_KEYS[framework])
    except (OSError, ValueError, AttributeError):
        built_for = None
    if built_for is None or not any((folder / framework).glob(EXTENSION_PATTERNS[framework])):
        return None, f"Horovod {version} was built without {FRAMEWORKS[framework]}: {FRAMEWORK_REMEDIES[framework]}"
    installed = detect_framework_version(framework)
    if installed is None:
        return built_for, f"Horovod {version} was built for {framework} {built_for}, which is not installed"
    if _normalize_version(built_for) != _normalize_version(installed):
        problem = f"Horovod {version} was built for {framework} {built_for}, and {installed} is installed: {REBUILD}"
        return built_for, problem
    return built_for, None


def _normalize_version(version: str) -> str:
    """Return a comparable version: TensorFlow reports 2.21.0-rc1 where its package is 2.21.0rc1."""
    return version.replace("-", "")


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe(framework: str) -> CachedFeatures | str:
    """Import Horovod in a separate process and return its features, or in a few words why that failed."""
    command = build_python_command("-c", PROBE_SCRIPT, framework, *FEATURES)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MAX_PROBE_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {MAX_PROBE_S:.0f} s"
    answers = [line.removeprefix("HOLDS ") for line in done.stdout.splitlines() if line.startswith("HOLDS ")]
    if done.returncode == 0 and answers:
        return CachedFeatures(json.loads(answers[0]))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] if done.returncode > 0 else []
    return lines[-1] if lines else f"exit status {done.returncode}"


def _cache_path(framework: str, extension: Path, version: str) -> Path | None:
    """Return the cache file, whose name changes with the build and with everything it is loaded with; None where there
    is no cache folder."""
    folder = find_cache_folder()
    stat = extension.stat()
    identity = [framework, detect_framework_version(framework), version, str(extension), stat.st_size, stat.st_mtime_ns]
    identity += [*FEATURES, sys.executable, os.environ.get("LD_LIBRARY_PATH")]
    mark = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return None if folder is None else folder / "horovod" / f"{framework}-{mark}.json"


def _read_cache(path: Path) -> CachedFeatures | None:
    try:
        from scalebench.core.json_files import read_record

        return read_record(path, CachedFeatures)
    except (ImportError, OSError, ValueError):  # horovod.sh also runs this in environments without msgspec
        return None


def _write_cache(path: Path, answer: CachedFeatures) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        from scalebench.core.json_files import write_json

        write_json(path, answer)
    except (ImportError, OSError):
        return  # probed again the next time


def find_nccl_package() -> Path | None:
    """Return the folder of the NCCL that PyTorch's wheels for CUDA bring, with its headers; None where it is not
    installed."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return None
    folders = map(Path, (spec and spec.submodule_search_locations) or ())
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
    for framework in frameworks:
        print(describe_horovod(framework))
    builds = [inspect_horovod(framework) for framework in frameworks]
    return int(any(build is None or build.problem is not None for build in builds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
