"""The device of a process: choosing it, its peak memory, and the bytes that a strategy keeps from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from scalebench.core.machine import cuda_builds, gpus
from scalebench.strategies.base import Unsupported


def choose_device(kind: str, index: int) -> torch.device:
    """Return the CPU, or the GPU with that index on its node as this process's current device.

    Raises Unsupported if PyTorch does not see that GPU, or has no code for it.
    """
    if kind == "cpu":
        return torch.device("cpu")
    is_available = torch.cuda.is_available()  # with too old a driver it is not, and device_count still counts the GPUs
    visible = torch.cuda.device_count() if is_available else 0
    (index,) = gpus.choose_visible_gpus([index], visible)
    problem = cuda_builds.find_torch_problem(
        torch.__version__,
        torch.version.cuda or torch.version.hip,
        [] if torch.version.hip else torch.cuda.get_arch_list(),
        None if is_available else gpus.detect_gpus().driver_version,
        [torch.cuda.get_device_capability(index)] if index < visible else [],
    )
    if problem is not None:
        raise Unsupported(problem)
    if index >= visible:
        raise Unsupported(f"PyTorch {torch.__version__} sees {visible} GPUs and this rank needs number {index}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def choose_backend(requested: str | None, device: str) -> str:
    """Return the requested backend; for auto, NCCL on GPUs and Gloo on CPUs (`device` is cuda or cpu)."""
    if requested in (None, "auto"):
        return "nccl" if device == "cuda" else "gloo"
    return str(requested)


def tunes_convolutions(device: str, is_full: bool) -> bool:
    """Return whether cuDNN tries its algorithms on the first batch of a shape and keeps the fastest, as TensorFlow has
    it do by default. It would try them again for the smaller batch at the end of an epoch, within a timed block."""
    return device == "cuda" and is_full


def set_threads(threads: int) -> None:
    """Set the number of threads within an operation; operations themselves run one after the other."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # can be set once per process only
        torch.set_num_interop_threads(1)


class PeakMemory:
    """The peak memory of a device by torch's allocator, without setup and the time within `paused`."""

    def __init__(self) -> None:
        self._before_pause = 0

    def read_bytes(self, device: torch.device) -> int | None:
        """Return the peak in bytes; None on a CPU, where torch does not count them."""
        return max(self._before_pause, torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None

    @contextmanager
    def paused(self, device: torch.device) -> Iterator[None]:
        """Leave evaluation out of the peak: it may process more samples at once than a step does."""
        self._before_pause = self.read_bytes(device) or 0
        try:
            yield
        finally:
            reset_peak(device)


def reset_peak(device: torch.device) -> None:
    """Restart a device's peak from the memory that is now in use; on a CPU there is none."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def count_state_bytes(model: nn.Module, optimizer_state: Mapping[Any, Mapping[str, Any]], device: torch.device) -> int:
    """Count the bytes of parameters, gradients, buffers and the optimizer's tensors that are on a device.

    Only the local shard of a DTensor counts, and a shared tensor counts once. Communication buffers such as the buckets
    of DistributedDataParallel are left out, and so is everything that a step allocates and frees: activations, and
    weights that FSDP gathers. Gradients are included after a step, since they stay until the next one.
    """
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [value for state in optimizer_state.values() for value in state.values() if isinstance(value, Tensor)]
    tensors = {id(tensor): tensor for tensor in chain(parameters, gradients, model.buffers(), states)}.values()
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local if tensor.device == device)
