"""One stage of a network as a module, and what it sends on to the next one.

What each node of a network costs, by what `strategy.options.split` balances over the stages.

How long forward and backward of a part of a model take by themselves.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scalebench.core.spec import Config
from scalebench.strategies.torch.model import NetworkModule, load_weights
from scalebench.strategies.torch.precision import Precision
from scalebench.workloads.network import Network
from scalebench.workloads.partition import NetworkStage, find_cuts, node_parameter_bytes, node_training_flops
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


STAGE_WORK_REPEATS = 5
MOST_S = 10.0  # after which there are no more repeats


def median_s(action: Callable[[], None], synchronize: Callable[[], None], repeats: int = STAGE_WORK_REPEATS) -> float:
    """Seconds of an action, once it has been warmed up."""
    found: list[float] = []
    action()
    while len(found) < repeats and sum(found) < MOST_S:
        synchronize()
        start = time.perf_counter()
        action()
        synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


class Work:
    """Forward and backward of the micro-batches of one update through one stage, in the order in which the schedule
    has them: so many forward passes go ahead, and then they take turns."""

    def __init__(
        self,
        module: nn.Module,
        inputs: list[Tensor],
        ahead: int,
        loss: Callable[[int, Tensor], Tensor] | None = None,
    ) -> None:
        """`loss`: what is differentiated of a micro-batch's outputs; None: they are, with ones for gradients."""
        self._module, self._inputs, self._ahead, self._loss = module, inputs, ahead, loss

    def __call__(self) -> None:
        self._module.zero_grad()
        begun: deque[Tensor] = deque()
        for number, inputs in enumerate(self._inputs):
            inputs.grad = None
            outputs = self._module(inputs)
            begun.append(outputs if self._loss is None else self._loss(number, outputs))
            if len(begun) == self._ahead:
                self._backward(begun.popleft())
        while begun:
            self._backward(begun.popleft())

    def _backward(self, outputs: Tensor) -> None:
        if outputs.requires_grad:  # not those of layers without weights that read samples
            outputs.backward(torch.ones_like(outputs))


TIME = "time"
COUNTED: dict[str, Callable[[Network], list[float]]] = {"flops": node_training_flops, "size": node_parameter_bytes}
REPEATS = 3


def measured(
    network: Network,
    config: Config,
    samples: int,
    device: torch.device,
    precision: Precision,
    synchronize: Callable[[], None],
) -> list[float]:
    """Seconds of forward and backward of so many samples, of each node: those of a segment, between two places where
    the network can be cut, are its last node's. One segment at a time has its weights in memory."""
    costs = dict.fromkeys((node.name for node in network.nodes), 0.0)
    for segment in segments(network):
        module = StageModule(built(segment, config, device), precision.autocast, None, None)
        inputs = example(config, samples, device)  # which nobody wants gradients of
        if segment.index:
            inputs = torch.randn(samples, *segment.source.shape, device=device, requires_grad=True)
        costs[segment.output.name] = median_s(Work(module, [inputs], 1), synchronize, REPEATS)
    return [costs[node.name] for node in network.nodes]


def segments(network: Network) -> Iterator[NetworkStage]:
    """The network cut wherever it can be."""
    ends = [0, *find_cuts(network), len(network.nodes) - 1]
    for index, (a, b) in enumerate(pairwise(ends)):
        yield NetworkStage(index, tuple(network.nodes[a + 1 : b + 1]), network.nodes[a])
