"""Check the installed frameworks against the driver and the GPUs, for `scalebench doctor`.

PyTorch is imported in a process of its own, since only it can list the GPUs that it has code for.
"""

from __future__ import annotations

import importlib.util

from scalebench.core.machine import cuda_builds
from scalebench.core.machine.machine import Machine
from scalebench.core.process import ask_python

Row = tuple[str, str]
MAX_ANSWER_S = 120.0
TORCH_SCRIPT = """
import torch, warnings
warnings.simplefilter("ignore")
cuda = torch.cuda
print("ANSWER", torch.__version__, torch.version.cuda or "none", int(cuda.is_available()), *cuda.get_arch_list())
"""


def list_cuda_facts(host: Machine) -> list[Row]:
    """List what PyTorch has for the driver and the GPUs, and the owners of NCCL and cuDNN; nothing without GPUs."""
    if not host.gpus:
        return []
    rows = [("CUDA", describe_torch_build(host))] if importlib.util.find_spec("torch") is not None else []
    packages = dict.fromkeys(name for names in cuda_builds.find_library_owners().values() for name in names)
    text = cuda_builds.find_library_conflict() or ", ".join(packages)
    return [*rows, ("NCCL, cuDNN", text)] if text else rows


def describe_torch_build(host: Machine) -> str:
    """Describe PyTorch's build beside the driver and the compute capabilities, or the problem with them."""
    answer, reason = ask_python(TORCH_SCRIPT, limit_s=MAX_ANSWER_S)
    if answer is None:
        return f"PyTorch does not import: {reason}"
    version, cuda, is_available, *architectures = answer
    texts = {gpu.compute_capability for gpu in host.gpus if gpu.compute_capability is not None}
    capabilities = sorted((int(major), int(minor)) for major, _, minor in (text.partition(".") for text in texts))
    driver = None if is_available == "1" else host.driver_version
    problem = cuda_builds.find_torch_problem(
        version, None if cuda == "none" else cuda, architectures, driver, capabilities
    )
    cards = ", ".join(map(cuda_builds.format_capability, capabilities)) or "unknown"
    build = f"PyTorch {version} has code for {' '.join(architectures) or 'unknown GPUs'}"
    return problem or f"{build}; driver {host.driver_version or 'unknown'}, compute capability {cards}"
