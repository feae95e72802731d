"""The numeric precision of convolutions and matrix products (`train.precision`) and torch.compile (`train.compile`).

Weights and losses stay float32 in every precision.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.optimizer import clip_gradients, list_parameters
from scalebench.workloads import records

HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TF32_CAPABILITY = (8, 0)  # compute capability of the first GPUs with TF32 units (NVIDIA Ampere)
NO_CAPABILITY = (0, 0)  # of a CPU, and of an AMD GPU

Shapes = tuple[torch.Size, ...]


class Precision:
    """Autocast for the forward pass, and for float16 a scaled loss, so that small gradients do not underflow."""

    def __init__(self, name: str, device: torch.device, clip_norm: float | None = None) -> None:
        """Set PyTorch's TF32 switches, which `default` leaves as PyTorch has them: on for convolutions, off for matrix
        products. Raises Unsupported where the device lacks that precision."""
        if name == "tf32":
            _check_tf32(device)
        if name != "default":  # float32 is really float32
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            torch.backends.cudnn.allow_tf32 = name == "tf32"
        self._device, self._half, self.clip_norm = device, HALF_DTYPES.get(name), clip_norm
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def autocast(self, device: str | None = None) -> AbstractContextManager[None]:
        """Return the context for the forward pass, on that kind of device if it is another one."""
        if self._half is None:
            return nullcontext()
        return torch.autocast(device or self._device.type, dtype=self._half)

    def leave_to(self, backward: Callable[[Tensor], Any], step_optimizer: Callable[[Optimizer], Any]) -> None:
        """Have a library run the backward pass, and step the optimizer, in its own way."""
        self.backward, self.step_optimizer = backward, step_optimizer  # type: ignore[method-assign]

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a loss, scaled under float16."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step_optimizer(self, optimizer: Optimizer) -> None:
        """Step the optimizer, with gradients of at most `clip_norm`.

        If gradients overflowed float16, the weights stay as they are and the next loss is scaled by less. Gradients
        have been averaged before, so that all replicas see the same overflow.
        """
        if self.clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            clip_gradients(list_parameters(optimizer), self.clip_norm)
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


def _check_tf32(device: torch.device) -> None:
    if device.type != "cuda" or torch.version.hip is not None:
        kind = "the CPU" if device.type != "cuda" else "AMD GPUs"
        raise Unsupported(f"train.precision=tf32 is a mode of NVIDIA's GPUs: take float32 or bfloat16 on {kind}")
    capability = torch.cuda.get_device_capability(device)
    if capability < TF32_CAPABILITY:
        name, version = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        raise Unsupported(f"train.precision=tf32 needs compute capability 8.0 or newer, and {name} has {version}")


def choose_data_format(train: TrainSpec, device: torch.device) -> str:
    """Return the memory layout of images on a device, nhwc or nchw, once Precision has set the switches."""
    has_capability = device.type == "cuda" and torch.version.hip is None  # AMD's numbers mean something else
    capability = torch.cuda.get_device_capability(device) if has_capability else NO_CAPABILITY
    return select_data_format(train, device.type, capability, torch.backends.cudnn.allow_tf32)


def select_data_format(train: TrainSpec, device: str, capability: tuple[int, int], allows_tf32: bool) -> str:
    """Return `train.data_format`; for `default` nhwc, which tensor cores prefer; nchw on GPUs that compute
    float32 without them: a V100 takes 1.68 s in NCHW for what takes 2.76 s in NHWC (pytorch/pytorch#44943).

    `allows_tf32` is cuDNN's switch.
    """
    if train.data_format != "default":
        return train.data_format
    uses_tensor_cores = train.precision in HALF_DTYPES or (allows_tf32 and capability >= TF32_CAPABILITY)
    return "nhwc" if device != "cuda" or uses_tensor_cores else "nchw"


class CompiledModel(nn.Module):
    """A model compiled for the input shapes in `shapes`: those of the first batch or of its parts.

    Evaluations, and batches of another shape, such as the last one of an epoch, run uncompiled: compiling again would
    stall a timed block for seconds or minutes.
    """

    def __init__(self, model: nn.Module, threads: int, device: torch.device) -> None:
        """Compile for a device with that many threads. Raises Unsupported without a compiler for the device."""
        super().__init__()
        from torch._inductor import config

        if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
            config.compile_threads = threads  # by default every rank starts one compiler process per core
        check_compiler(device)
        self.model = model
        self.shapes: set[Shapes] = set()
        self._compiled = torch.compile(model.forward, dynamic=False)

    def forward(self, inputs: Any, *targets: Any) -> Tensor:
        shapes = input_shapes(inputs)
        if not self.shapes:
            self.shapes.add(shapes)
        if self.training and shapes in self.shapes:
            return self._compiled(inputs, *targets)
        return self.model(inputs, *targets)


def input_shapes(inputs: Any) -> Shapes:
    """Return the shapes of a batch's inputs: one, or several where samples are records."""
    return tuple(tensor.shape for tensor in records.list_fields(inputs))


def check_compiler(device: torch.device) -> None:
    """Raise Unsupported where what turns generated code into a program for the device is not installed."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise Unsupported("train.compile=default needs Triton, which this PyTorch lacks: pip install triton")
    if shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is None:
        raise Unsupported("train.compile=default needs a C++ compiler, and none is found: install g++ or set CXX")
