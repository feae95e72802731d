"""One stage of a network as a module, and what it sends on to the next one."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scalebench.adapters.torch.network import NetworkModule
from scalebench.adapters.torch.weights import load_weights
from scalebench.spec import Config
from scalebench.workloads.partition import NetworkStage
from scalebench.workloads.weights import initial_weights


class Wire(NamedTuple):
    """What goes from a stage to the next one, and its gradient back: contiguous, in the order in which it lies in the
    sender's memory, so that neither side copies."""

    shape: tuple[int, ...]  # of one sample, as it is sent
    dtype: torch.dtype
    channels_last: bool  # (positions..., channels); else torch's order

    @classmethod
    def of(cls, outputs: Tensor) -> Wire:
        """For outputs like these, which are in torch's order."""
        channels_last = outputs.dim() > 2 and not outputs.is_contiguous() and outputs.movedim(1, -1).is_contiguous()
        sent = outputs.movedim(1, -1) if channels_last else outputs
        return cls(tuple(sent.shape[1:]), outputs.dtype, channels_last)

    def bytes(self, samples: int) -> int:
        return samples * math.prod(self.shape) * self.dtype.itemsize

    def empty(self, samples: int, device: torch.device | str) -> Tensor:
        return torch.empty(samples, *self.shape, dtype=self.dtype, device=device)

    def sent(self, outputs: Tensor) -> Tensor:
        return (outputs.movedim(1, -1) if self.channels_last else outputs).contiguous()

    def received(self, sent: Tensor) -> Tensor:
        """A view in the neutral order, which a NetworkModule takes."""
        return sent if self.channels_last or sent.dim() < 3 else sent.movedim(1, -1)


class StageModule(nn.Module):
    """A stage's part of the forward pass, from what comes over `reads` to what goes over `sends`; None: samples come
    in, as they are fed, and what the model says goes out."""

    def __init__(
        self,
        model: NetworkModule,
        autocast: Callable[[], AbstractContextManager[None]],
        reads: Wire | None,
        sends: Wire | None,
    ) -> None:
        super().__init__()
        self.model, self.reads, self.sends = model, reads, sends
        self._autocast = autocast

    def forward(self, inputs: Tensor) -> Tensor:
        taken = inputs if self.reads is None else self.reads.received(inputs)
        with self._autocast():
            outputs = self.model(taken)
        return outputs if self.sends is None else self.sends.sent(outputs)


def built(stage: NetworkStage, config: Config, device: torch.device) -> NetworkModule:
    """With those of the weights that the whole model starts from which are the stage's."""
    network = stage.network(config.model.name)
    model = NetworkModule(network, config.train.data_format, config.train.dropout)
    arrays = ((array.name, array.shape, array.init) for array in network.arrays)
    load_weights(model, initial_weights(arrays, config.seed))
    return model.to(device)


def example(config: Config, samples: int, device: torch.device) -> Tensor:
    """Inputs of the whole model, as they are fed: zeros."""
    dtype = getattr(torch, config.dataset.dtype)
    return torch.zeros(samples, *config.model.input_shape, dtype=dtype, device=device)
