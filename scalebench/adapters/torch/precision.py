"""`train.precision`: what convolutions and matrix products compute in. Weights and losses stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.optim import Optimizer

from scalebench.strategy import Unsupported

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
