"""`train.precision`: what convolutions and matrix products compute in. Weights and losses stay float32.

`train.compile`: the network through torch.compile.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scalebench.strategies.base import Unsupported

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TF32_CAPABILITY = (8, 0)  # compute capability of the first GPUs with TF32 units (NVIDIA Ampere)


class Precision:
    """Autocasting for the forward pass, and for float16 a scaled loss, so that small gradients survive."""

    def __init__(self, name: str, device: torch.device) -> None:
        """Sets PyTorch's switches for TF32. Raises Unsupported where the device cannot do it."""
        if name == "tf32":
            _check_tf32(device)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        torch.backends.cudnn.allow_tf32 = name == "tf32"  # PyTorch's own default is True: float32 means it here
        self._device, self._half = device, HALF.get(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def autocast(self) -> AbstractContextManager[None]:
        """Around the forward pass."""
        if self._half is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._half)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, optimizer: Optimizer) -> None:
        """One step of the optimizer. With gradients that overflowed float16 the weights stay as they are, and
        the next loss is scaled by less; gradients are averaged by then, so that all replicas see the same."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


def _check_tf32(device: torch.device) -> None:
    if device.type != "cuda":
        raise Unsupported("train.precision=tf32 is a mode of GPUs: take float32 or bfloat16 on the CPU")
    capability = torch.cuda.get_device_capability(device)
    if capability < TF32_CAPABILITY:
        name, has = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        raise Unsupported(f"train.precision=tf32 wants compute capability 8.0 or newer, and {name} has {has}")


class Compiled(nn.Module):
    """A model, compiled for the shape of its first batch, or for those of its parts, which `shapes` is told.

    Batches of another shape, as the last one of an epoch, take the plain way: compiling once more would stop a
    timed block for seconds or minutes.
    """

    def __init__(self, model: nn.Module, threads: int) -> None:
        """`threads`: that may compile at the same time. Raises Unsupported without a compiler for the device."""
        super().__init__()
        from torch._inductor import config

        if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
            config.compile_threads = threads  # by itself it starts a process for each core, in every rank
        check_compiler(next(model.parameters()).device)
        self.model = model
        self.shapes: set[torch.Size] = set()
        self._compiled = torch.compile(model.forward, dynamic=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.shapes:
            self.shapes.add(inputs.shape)
        return self._compiled(inputs) if inputs.shape in self.shapes else self.model(inputs)


def check_compiler(device: torch.device) -> None:
    """Raises Unsupported if inductor could not turn its code into a program for the device."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if device.type == "cuda" and not has_triton():
        raise Unsupported("train.compile=true wants Triton, which this PyTorch lacks: pip install triton")
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise Unsupported(
            "train.compile=true wants a C++ compiler, and none is found: install g++ or set CXX"
        ) from None
