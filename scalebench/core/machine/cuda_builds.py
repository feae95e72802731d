"""Check that the CUDA builds of the installed frameworks fit the driver and the GPUs, for doctor, support and ranks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

Capability = tuple[int, int]

MIN_DRIVERS = {"13": 580, "12": 525}  # by major version of CUDA: NVIDIA's "CUDA Compatibility", minor versions
TORCH_REMEDY = (
    "uv pip install --reinstall --torch-backend=auto torch chooses the build, "
    "https://pytorch.org/get-started lists them for pip"
)
TENSORFLOW_APART = "in an environment of its own: pip install 'scalebench-train[tensorflow_cuda]'"
LIBRARY_PACKAGES = [f"nvidia-{library}-cu{cuda}" for library in ("nccl", "cudnn") for cuda in (11, 12, 13)]


def find_torch_problem(
    version: str,
    cuda: str | None,
    architectures: Sequence[str],
    driver: str | None,
    capabilities: Sequence[Capability],
) -> str | None:
    """Explain in a clause with the way out why an installed PyTorch cannot compute on these GPUs; None if it can.

    `cuda` is the version of CUDA or ROCm that it was built for (None: a build for CPUs), `architectures` are those of
    its `torch.cuda.get_arch_list()`, empty where it cannot tell them, and for AMD GPUs. `driver` is None where PyTorch
    reaches the GPUs: one that is older than a build needs may do with NVIDIA's compatibility package.
    """
    if cuda is None:
        return f"PyTorch {version} is a build without CUDA: {TORCH_REMEDY}"
    min_driver = MIN_DRIVERS.get(cuda.partition(".")[0], 0)
    if driver is not None and int(driver.partition(".")[0]) < min_driver:
        return f"PyTorch {version} needs NVIDIA driver {min_driver} or newer, and {driver} is installed: {TORCH_REMEDY}"
    for capability in capabilities if architectures else ():
        if not any(_runs_on(architecture, capability) for architecture in architectures):
            lacks = f"has no code for compute capability {format_capability(capability)}"
            return f"PyTorch {version} {lacks}, only for {' '.join(architectures)}: {TORCH_REMEDY}"
    return None


def _runs_on(architecture: str, capability: Capability) -> bool:
    """Return whether code for sm_86 (binary: same major version, this minor version or later) or compute_90 (for that
    GPU and all later ones) runs on a GPU; sm_90a and the like run on exactly that GPU."""
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if parts is None:
        return False
    built = (int(parts[2]), int(parts[3]))
    if parts[4]:
        return capability == built
    return capability >= built and (parts[1] == "compute" or capability[0] == built[0])


def format_capability(capability: Capability) -> str:
    return ".".join(map(str, capability))


def find_package(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def read_torch_version(name: str) -> str | None:
    """Return `__version__` or `cuda` of torch/version.py, without importing PyTorch; None where it has none.

    The package index has a torch 2.13.0 that reports 2.13.0+cu130, which is what Horovod compares.
    """
    folder = find_package("torch")
    try:
        text = "" if folder is None else (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    line = re.search(rf"^{name}\b.*=\s*['\"](.+)['\"]", text, re.MULTILINE)
    return None if line is None else line[1]


def find_library_owners() -> dict[str, list[str]]:
    """Return the packages, with versions, that own each shared library of NCCL and cuDNN in this environment."""
    owners: dict[str, list[str]] = {}
    for package in LIBRARY_PACKAGES:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        for path in distribution.files or []:
            if ".so" in path.name:
                owners.setdefault(str(path), []).append(f"{package} {distribution.version}")
    return owners


def find_library_conflict() -> str | None:
    """Explain in a clause with the way out that two packages own the same library; None where none is shared.

    The package installed last has replaced the libraries of the other, so that a framework does not start, or computes
    with other versions than it was built for. `pip check` does not look at files.
    """
    for path, packages in find_library_owners().items():
        if len(packages) > 1:
            return (
                f"{' and '.join(packages)} both own {path}, and the one installed last replaced the other's: install "
                f"PyTorch in a new environment, and TensorFlow {TENSORFLOW_APART}"
            )
    return None
