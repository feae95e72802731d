"""torch.nn.DataParallel: one process drives several GPUs, one thread each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.cuda import comm
from torch.nn.parallel import DataParallel

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.memory import peaks
from scalebench.strategies.torch.observed import COPIES, UPDATES, ProfiledReplay, backend_of

FUSED_BYTES = 10 << 20  # that torch.nn.parallel sends at a time of what is smaller (comm.broadcast_coalesced)


class SingleProcess(TorchStrategy):
    """The first GPU holds weights, gradients and the optimizer. In each update it sends the weights to the others and
    each its part of the batch, gets the outputs, makes one loss of all, and adds up the gradients.

    Parts are those of torch.chunk, of which the last are smaller or missing; the loss is the mean over all samples
    whatever they are, so that nothing has to be weighted.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._buffers: dict[int, list[Tensor]] = {}

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.spec.config.train.compile:
            raise Unsupported("data_parallel copies the model in each update, which train.compile=true does not follow")
        if self.device.type != "cuda":  # where DataParallel would pass everything through
            raise Unsupported("data_parallel needs GPUs: on CPU torch.nn.DataParallel would silently be one device")
        return DataParallel(model, device_ids=list(self.place.devices), output_device=self.device)

    def synchronize(self) -> None:
        for device in self._devices():
            torch.cuda.synchronize(device)

    def set_gradient_sync(self, on: bool) -> None:
        if not on:
            raise NotMeasured("data_parallel has one copy of the weights, which goes out to all GPUs in each update")

    def message_sizes(self) -> list[int]:
        """Weights and moving statistics on their way out, then gradients on their way back, as torch puts them
        together: computed from the model. Parts of the batch and outputs are not in it."""
        return [*self._out(), *self._back()]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Out to all GPUs, and back to the first one with a sum."""
        devices, out = [device.index for device in self._devices()], len(self._out())
        for number, size in enumerate(sizes):
            if size not in self._buffers:
                self._buffers[size] = [torch.zeros(max(1, size // 4), device=device) for device in self._devices()]
            if number < out:
                comm.broadcast(self._buffers[size][0], devices)
            else:
                comm.reduce_add(self._buffers[size], devices[0])

    def backend_used(self) -> str | None:
        """Two more updates under the profiler, which spoil the weights. copy: GPUs write to each other's memory."""
        if self.last_batch is None:
            raise RuntimeError("backend_used replays the last batch of the training, and there was no training")
        replay = ProfiledReplay(self.last_batch, UPDATES)
        self.train(replay)
        names = replay.names()
        return backend_of(names) or ("copy" if any(name.startswith(COPIES) for name in names) else None)

    def peak_memory_bytes(self) -> list[int | None]:
        """Evaluation is on the first GPU, and not counted."""
        return [*super().peak_memory_bytes(), *peaks(self._devices()[1:])]

    def state_bytes(self) -> list[int | None]:
        """All of it on the first GPU; the copies that others get live as long as an update."""
        return [*super().state_bytes(), *(0 for _ in self._devices()[1:])]

    def close(self) -> None:
        self._buffers.clear()
        super().close()

    def _out(self) -> list[int]:
        return [*self._fused(self.model.parameters()), *self._fused(self.model.buffers())]

    def _back(self) -> list[int]:
        return self._fused(one for one in self.model.parameters() if one.requires_grad)

    def _fused(self, tensors: Iterable[Tensor]) -> list[int]:
        alone = len(self.place.devices) == 1
        return [] if alone else fused([one.numel() * one.element_size() for one in tensors], FUSED_BYTES)

    def _devices(self) -> list[torch.device]:
        return [torch.device("cuda", index) for index in self.place.devices]


def fused(sizes: list[int], limit: int) -> list[int]:
    """Bytes of the messages that tensors of these sizes are sent in: as many as keep within the limit, in their order;
    a larger one by itself."""
    found: list[int] = []
    open_bytes = 0
    for size in sizes:
        if open_bytes and open_bytes + size > limit:
            found.append(open_bytes)
            open_bytes = 0
        open_bytes += size
    return [*found, open_bytes] if open_bytes else found
