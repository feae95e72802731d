"""torch.nn.DataParallel: one process drives several GPUs with one thread for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from scalebench.strategies.base import Unsupported, never_measured
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.devices import PeakMemory
from scalebench.strategies.torch.profiling import DEVICE_COPY_EVENTS, identify_backend
from scalebench.strategies.torch.step_module import StepModule


class SingleProcessDataParallel(TorchStrategy):
    """The first GPU holds weights, gradients and the optimizer. In each step it sends the weights and a part of the
    batch to each other GPU, gathers the outputs, computes one loss of all of them, and adds up the gradients.

    The parts are those of torch.chunk, of which the last ones may be smaller or missing; the loss is the mean over all
    samples in any case, so that nothing has to be weighted.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.device.type != "cuda":  # DataParallel would call the model directly
            raise Unsupported("data_parallel needs GPUs: on CPU torch.nn.DataParallel would silently be one device")
        copies = DataParallel(_Outputs(self.model), [each.index for each in self._devices()], self.device)
        return StepModule(copies, self.model.loss)

    def synchronize(self) -> None:
        for device in self._devices():
            torch.cuda.synchronize(device)

    set_gradient_sync = never_measured("has one copy of the weights, which goes out to all GPUs in each step")

    def backend_used(self) -> str | None:
        """Observe the backend in profiled steps; copy: GPUs write to each other's memory."""
        if len(self._devices()) == 1:  # nothing is sent, and copies within its memory would look like copies to another
            return None
        names = self.observe_steps().names
        return identify_backend(names) or (
            "copy" if any(name.startswith(DEVICE_COPY_EVENTS) for name in names) else None
        )

    def peak_memory_bytes(self) -> list[int | None]:
        """Return the peak of each GPU, without evaluation, which runs on the first one."""
        return [*super().peak_memory_bytes(), *(PeakMemory().read_bytes(device) for device in self._devices()[1:])]

    def state_bytes(self) -> list[int | None]:
        """Return the state's bytes, all of them on the first GPU: the copies on other GPUs last for one step."""
        return [*super().state_bytes(), *(0 for _ in self._devices()[1:])]

    def _devices(self) -> list[torch.device]:
        if len(self.place.devices) == 1:
            return [self.device]  # the only GPU that a process sees has the number 0 there
        return [torch.device("cuda", index) for index in self.place.devices]


class _Outputs(nn.Module):
    """What the copies compute: the outputs, whose loss is computed where all of them are."""

    def __init__(self, model: StepModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Tensor:
        return self.model.compute_outputs(inputs)
