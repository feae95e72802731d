"""What the installed Horovod can do: for which frameworks it was built, and over which transports. Layer 0.

Two installations of one version differ: each was compiled for the PyTorch, TensorFlow, MPI and NCCL of its machine.
A wrong one is found before a run starts, not as an import error in rank 3; no framework is imported in this process.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.json_files import read_json, read_record, write_json
from scalebench.core.machine.machine import cache_folder

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
TRANSPORTS = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
ANEW = "make horovod builds it anew"
WAYS_OUT = {
    "mpi": "apt-get install openmpi-bin libopenmpi-dev, then make horovod",
    "gloo": ANEW,
    "nccl": "HOROVOD_GPU_OPERATIONS=NCCL make horovod, on a machine with nvcc and NCCL",
}
# See docs/horovod.md: on a machine with GPUs the build leaves TensorFlow out, unless it is told to leave NCCL out.
NO_TENSORFLOW_NCCL = "its operations for it do not compile with TensorFlow; use strategy=multiworker_nccl"
WITHOUT = {"torch": ANEW, "tensorflow": f"HOROVOD_GPU_OPERATIONS=none {ANEW}"}
PROBE_LIMIT_S = 120.0
PROBE = """
import importlib, json, sys
horovod = importlib.import_module("horovod." + sys.argv[1])
print("HOLDS", json.dumps([name for name in sys.argv[2:] if getattr(horovod, name + "_built")()]))
"""
_KEYS = {"torch": "pytorch", "tensorflow": "tensorflow"}  # of Horovod's metadata.json
_EXTENSIONS = {"torch": "mpi_lib_v2*.so", "tensorflow": "mpi_lib*.so"}
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")


@dataclass(frozen=True)
class Build:
    """What Horovod is for one framework."""

    version: str
    built_for: str | None  # version of the framework; None: its part was left out
    transports: tuple[str, ...]  # mpi, gloo, nccl: those that it holds; empty where there is a problem
    problem: str | None  # why it cannot be used with this framework, one clause with the way out


@dataclass
class _Answer:
    """What the cache keeps."""

    transports: list[str]


@functools.cache
def find(framework: str) -> Build | None:
    """What the installed Horovod is for "torch" or "tensorflow"; None when it is not installed.

    Takes a few seconds the first time, in a process that imports the framework; the answer is kept in the cache folder.
    """
    folder = _folder("horovod")
    if folder is None:
        return None
    version = _version_of("horovod") or "of unknown version"
    built_for, wrong = _built_for(framework, folder, version)
    if wrong is not None:
        return Build(version, built_for, (), wrong)
    extension = next((folder / framework).glob(_EXTENSIONS[framework]))
    kept = _kept_in(framework, extension, version)
    answer = _recall(kept)
    if answer is None:
        told = _probe(framework)
        if isinstance(told, str):  # not kept: what is missing now, such as a library, may be there the next time
            return Build(version, built_for, (), f"Horovod {version} does not import with {framework}: {told}; {ANEW}")
        _keep(kept, answer := told)
    return Build(version, built_for, tuple(answer.transports), None)


def obstacle(framework: str, transport: str | None, launcher: str) -> str | None:
    """Why a strategy cannot run with the Horovod that is here, in a clause with the way out; None when it can.

    `transport` is what is to carry the gradients (None and "auto": whatever there is), `launcher` "local" or "mpi".
    """
    if transport == "gloo" and launcher == "mpi":
        return "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    if transport == "mpi" and launcher != "mpi":
        return "Horovod's MPI operations need processes that mpirun started: use strategy.launcher=mpi"
    build = find(framework)
    if build is None:
        return "Horovod is not installed: make horovod builds it"
    if build.problem is not None:
        return build.problem
    # The processes find each other over MPI or Gloo, whatever carries the gradients then.
    for name in ("mpi" if launcher == "mpi" else "gloo", transport):
        if name in TRANSPORTS and name not in build.transports:
            way_out = NO_TENSORFLOW_NCCL if (framework, name) == ("tensorflow", "nccl") else WAYS_OUT[name]
            return f"Horovod {build.version} was built without {TRANSPORTS[name]}: {way_out}"
    return None


def describe(framework: str) -> str:
    """One line for people, such as 'Horovod 0.28.1 with PyTorch 2.13.0+cpu: MPI, Gloo (no NCCL)'."""
    build = find(framework)
    if build is None:
        return "Horovod is not installed"
    if build.problem is not None:
        return f"Horovod {build.version} with {FRAMEWORKS[framework]}: no ({build.problem})"
    holds = ", ".join(text for name, text in TRANSPORTS.items() if name in build.transports)
    lacks = ", ".join(text for name, text in TRANSPORTS.items() if name not in build.transports)
    return f"Horovod {build.version} with {FRAMEWORKS[framework]} {build.built_for}: {holds}" + (
        f" (no {lacks})" if lacks else ""
    )


def framework_version(framework: str) -> str | None:
    """The version that the framework gives itself, without importing it; None when it is not installed."""
    if framework == "torch":
        # The package index has torch 2.13.0 that calls itself 2.13.0+cu130, which is what Horovod compares.
        found = re.search(r"^__version__ = ['\"](.+)['\"]", torch_version_file(), re.MULTILINE)
        return found[1] if found else _version_of("torch")
    return next((version for name in _TENSORFLOWS if (version := _version_of(name)) is not None), None)


def torch_version_file() -> str:
    """The text of torch/version.py, "" without PyTorch."""
    folder = _folder("torch")
    try:
        return "" if folder is None else (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""


def _built_for(framework: str, folder: Path, version: str) -> tuple[str | None, str | None]:
    """(version of the framework that Horovod was built for, why it is of no use now), either None."""
    try:
        built_for = read_json(folder / "metadata.json").get(_KEYS[framework])
    except (OSError, ValueError, AttributeError):
        built_for = None
    if built_for is None or not any((folder / framework).glob(_EXTENSIONS[framework])):
        return None, f"Horovod {version} was built without {FRAMEWORKS[framework]}: {WITHOUT[framework]}"
    installed = framework_version(framework)
    if installed is None:
        return built_for, f"Horovod {version} was built for {framework} {built_for}, which is not installed"
    if _plain(built_for) != _plain(installed):
        wrong = f"Horovod {version} was built for {framework} {built_for}, and {installed} is installed: {ANEW}"
        return built_for, wrong
    return built_for, None


def _plain(version: str) -> str:
    """TensorFlow calls itself 2.21.0-rc1 where its package is 2.21.0rc1."""
    return version.replace("-", "")


def _folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe(framework: str) -> _Answer | str:
    """Import it in a process of its own, and ask; or why that failed, in a few words."""
    command = [sys.executable, "-c", PROBE, framework, *TRANSPORTS]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_LIMIT_S:.0f} s"
    held = [line.removeprefix("HOLDS ") for line in done.stdout.splitlines() if line.startswith("HOLDS ")]
    if done.returncode == 0 and held:
        return _Answer(json.loads(held[0]))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] if done.returncode > 0 else []
    return lines[-1] if lines else f"exit status {done.returncode}"


def _kept_in(framework: str, extension: Path, version: str) -> Path:
    """The file for the answer: of another name as soon as the build or what it is loaded with changes."""
    stat = extension.stat()
    identity = [framework, framework_version(framework), version, str(extension), stat.st_size, stat.st_mtime_ns]
    identity += [sys.executable, os.environ.get("LD_LIBRARY_PATH")]
    mark = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return cache_folder() / "horovod" / f"{framework}-{mark}.json"


def _recall(path: Path) -> _Answer | None:
    try:
        return read_record(path, _Answer)
    except (OSError, ValueError):
        return None


def _keep(path: Path, answer: _Answer) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, answer)
    except OSError:
        return  # asked again the next time


def main(frameworks: list[str]) -> int:
    """Print a line for each framework; 1 when Horovod is of no use with one of them."""
    for framework in frameworks:
        print(describe(framework))
    builds = [find(framework) for framework in frameworks]
    return int(any(build is None or build.problem is not None for build in builds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
