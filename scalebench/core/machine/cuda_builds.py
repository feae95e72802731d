"""Choose the CUDA builds of the frameworks that fit a driver and its GPUs, and check those that are installed.

The installation scripts run this file as a program before any package is installed: it needs the standard library
alone. The doctor and the ranks use its functions.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.errors import InputError

Capability = tuple[int, int]

GPU_VARIABLE = "SCALEBENCH_GPU"  # yes or no, where the machine that installs is not the one that runs
INDEX_VARIABLE = "SCALEBENCH_TORCH_INDEX"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TENSORFLOW_CUDA = 12  # major version of the libraries that tensorflow[and-cuda] brings
TENSORFLOW_APART = "in an environment of its own: pip install 'scalebench-train[tensorflow_cuda]'"
LIBRARY_PACKAGES = [f"nvidia-{library}-cu{cuda}" for library in ("nccl", "cudnn") for cuda in (11, 12, 13)]
SMI_QUERY = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
MAX_ANSWER_S = 60.0  # a driver without persistence mode wakes every GPU up first


@dataclass(frozen=True)
class TorchBuild:
    """A CUDA build of PyTorch, and the drivers (major version) and GPUs that it runs with."""

    cuda: str
    index: str
    min_driver: int
    min_capability: Capability
    max_capability_major: int | None  # None: it also has code that the driver translates for later GPUs (PTX)

    def fits(self, driver: int | None, capabilities: Sequence[Capability]) -> bool:
        """Return whether it runs with this driver (None: unknown) and on all of these GPUs."""
        return (driver is None or driver >= self.min_driver) and all(
            capability >= self.min_capability and capability[0] <= (self.max_capability_major or capability[0])
            for capability in capabilities
        )


# Capabilities: "PyTorch CUDA Support Matrix" in RELEASE.md of pytorch/pytorch, for 2.12 to 2.14. Drivers: NVIDIA's
# "CUDA Compatibility", minor version compatibility. The package index of Python has the first build.
TORCH_BUILDS = (
    TorchBuild("13.0", "https://download.pytorch.org/whl/cu130", 580, (7, 5), None),
    TorchBuild("12.6", "https://download.pytorch.org/whl/cu126", 525, (5, 0), 9),
)


def choose_torch_build(driver: str | None, capabilities: Sequence[Capability]) -> TorchBuild:
    """Return the newest build that fits; raise InputError where none does.

    `driver` is a version such as 535.183.01, and None where no GPU is in sight, as while an image is built.
    """
    for build in TORCH_BUILDS:
        if build.fits(_major(driver), capabilities):
            return build
    for build in TORCH_BUILDS[::-1]:
        if build.fits(None, capabilities):
            raise InputError(
                f"no CUDA build of PyTorch runs with NVIDIA driver {driver}: update it to {build.min_driver} or newer, "
                f"or set {GPU_VARIABLE}=no"
            )
    cards = " and ".join(map(format_capability, sorted(set(capabilities))))
    raise InputError(f"no CUDA build of PyTorch runs on GPUs of compute capability {cards}: set {GPU_VARIABLE}=no")


def read_nvidia_smi() -> tuple[str, list[Capability]] | None:
    """Return the version of the driver and the compute capability of each GPU; None where nvidia-smi shows no GPU.

    Capabilities are empty where the driver is too old to tell them (before 510).
    """
    for query in (SMI_QUERY, [SMI_QUERY[0], "--query-gpu=driver_version", SMI_QUERY[2]]):
        try:
            done = subprocess.run(
                query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MAX_ANSWER_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        lines = [re.fullmatch(r"(\d+\.[\d.]+)(?:, *(.*))?", line.strip()) for line in done.stdout.splitlines()]
        rows = [(line[1], parse_capability(line[2])) for line in lines if line is not None]
        if rows:
            return rows[0][0], [capability for _, capability in rows if capability is not None]
    return None


def choose_index(environment: Mapping[str, str]) -> str:
    """Return the address of the package index that has PyTorch's build for this machine.

    Raises InputError for a wrong SCALEBENCH_GPU, and where no build fits.
    """
    choice = environment.get(GPU_VARIABLE, "")
    if choice not in ("", "yes", "no"):
        raise InputError(f"{GPU_VARIABLE}={choice} should be yes or no")
    if environment.get(INDEX_VARIABLE):
        return environment[INDEX_VARIABLE]
    gpus = read_nvidia_smi() if choice != "no" else None
    if gpus is None and choice != "yes":
        return CPU_INDEX
    return choose_torch_build(*(gpus or (None, []))).index


def choose_tensorflow(torch_cuda: str | None, version: str) -> tuple[str, str | None]:
    """Return the requirement of TensorFlow that fits beside PyTorch for that CUDA version (None: for CPUs), and a
    sentence for people where that is not TensorFlow's build for GPUs although PyTorch's is one.

    Packages for different CUDA versions unpack NCCL and cuDNN into the same folders, where both frameworks look for
    them: the one installed last would replace the other's.
    """
    if torch_cuda is None:
        return f"tensorflow-cpu=={version}", None
    if _major(torch_cuda) == TENSORFLOW_CUDA:
        return f"tensorflow[and-cuda]=={version}", None
    remark = (
        f"TensorFlow {version} is its CPU build here, since its libraries for CUDA {TENSORFLOW_CUDA} would replace "
        f"PyTorch's for CUDA {torch_cuda}; for GPUs, {TENSORFLOW_APART}"
    )
    return f"tensorflow-cpu=={version}", remark


def find_torch_problem(
    version: str,
    cuda: str | None,
    architectures: Sequence[str],
    driver: str | None,
    capabilities: Sequence[Capability],
) -> str | None:
    """Explain in a clause with the way out why an installed PyTorch cannot compute on these GPUs; None if it can.

    `cuda` is the version it was built for (None: a build for CPUs), `architectures` are those of its
    `torch.cuda.get_arch_list()`, empty where it cannot tell them. `driver` is None where PyTorch reaches the GPUs: one
    that is older than a build needs may do with NVIDIA's compatibility package.
    """
    way_out = _explain_reinstall(driver, capabilities)
    if cuda is None:
        return f"PyTorch {version} is a build without CUDA: {way_out}"
    min_driver = next((build.min_driver for build in TORCH_BUILDS if _major(build.cuda) == _major(cuda)), 0)
    if driver is not None and (_major(driver) or 0) < min_driver:
        return f"PyTorch {version} needs NVIDIA driver {min_driver} or newer, and {driver} is installed: {way_out}"
    for capability in capabilities if architectures else ():
        if not any(_runs_on(architecture, capability) for architecture in architectures):
            lacks = f"has no code for compute capability {format_capability(capability)}"
            return f"PyTorch {version} {lacks}, only for {' '.join(architectures)}: {way_out}"
    return None


def _explain_reinstall(driver: str | None, capabilities: Sequence[Capability]) -> str:
    """Return the command that installs a build that fits, or why there is none."""
    try:
        return f"pip install --force-reinstall torch --index-url {choose_torch_build(driver, capabilities).index}"
    except InputError as error:
        return str(error)


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


def detect_torch_cuda() -> str | None:
    """Return the CUDA version that the installed PyTorch was built for, without importing it; None without one."""
    line = re.search(r"^cuda\b.*=\s*['\"](.+)['\"]", read_torch_version_file(), re.MULTILINE)
    return None if line is None else line[1]


def read_torch_version_file() -> str:
    """Return the text of torch/version.py; empty without PyTorch."""
    folder = find_package("torch")
    try:
        return "" if folder is None else (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""


def find_package(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


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


def format_capability(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def parse_capability(text: str | None) -> Capability | None:
    """Return (9, 0) for `9.0`; None for any other text, such as nvidia-smi's [N/A]."""
    parts = re.fullmatch(r"(\d+)\.(\d+)", text or "")
    return None if parts is None else (int(parts[1]), int(parts[2]))


def _major(version: str | None) -> int | None:
    parts = re.match(r"\d+", version or "")
    return None if parts is None else int(parts[0])


def main(arguments: Sequence[str]) -> int:
    """Print what the installation scripts ask for: `index` of PyTorch, or `tensorflow VERSION`."""
    try:
        match arguments:
            case ["index"]:
                print(choose_index(os.environ))
            case ["tensorflow", version]:
                requirement, remark = choose_tensorflow(detect_torch_cuda(), version)
                print(requirement)
                if remark is not None:
                    print(remark, file=sys.stderr)
            case _:
                raise InputError("cuda_builds takes 'index', or 'tensorflow VERSION'")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
