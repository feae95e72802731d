"""`train.compile`: the network through torch.compile."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from scalebench.strategy import Unsupported


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
