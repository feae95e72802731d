"""One stage of a network as a module, the layout of its activations between stages, and the costs that cut a network.

`strategy.options.split` chooses the cost of each node: counted FLOPs or bytes, or measured seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scalebench.core.spec import Config
from scalebench.strategies.base import measure_median_s
from scalebench.strategies.torch.model import NetworkModule, build_network_module
from scalebench.strategies.torch.precision import Precision
from scalebench.workloads.network import Network
from scalebench.workloads.partition import NetworkStage, find_cuts

SPLIT_BY_TIME = "time"
COST_REPEATS = 3


class ActivationLayout(NamedTuple):
    """The layout of activations between two stages, and of their gradients on the way back.

    They are sent contiguously in the order of the sender's memory, so that neither side copies them.
    """

    shape: tuple[int, ...]  # of one sample, as it is sent
    dtype: torch.dtype
    channels_last: bool  # (positions..., channels); else torch's order

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> ActivationLayout:
        """Return the layout of outputs like these, whose axes are in torch's order."""
        channels_last = outputs.dim() > 2 and not outputs.is_contiguous() and outputs.movedim(1, -1).is_contiguous()
        packed = outputs.movedim(1, -1) if channels_last else outputs
        return cls(tuple(packed.shape[1:]), outputs.dtype, channels_last)

    def size_bytes(self, samples: int) -> int:
        return samples * math.prod(self.shape) * self.dtype.itemsize

    def empty(self, samples: int, device: torch.device | str) -> Tensor:
        return torch.empty(samples, *self.shape, dtype=self.dtype, device=device)

    def pack(self, outputs: Tensor) -> Tensor:
        """Return a stage's outputs as they are sent."""
        return (outputs.movedim(1, -1) if self.channels_last else outputs).contiguous()

    def unpack(self, packed: Tensor) -> Tensor:
        """Return what was received as a view in the neutral order, which a NetworkModule takes."""
        return packed if self.channels_last or packed.dim() < 3 else packed.movedim(1, -1)


class StageModule(nn.Module):
    """One stage's part of the forward pass.

    An `input_layout` of None means the first stage, which takes samples as they are fed; an `output_layout` of None
    means the last one, which returns the model's outputs.
    """

    def __init__(
        self,
        model: NetworkModule,
        autocast: Callable[[], AbstractContextManager[None]],
        input_layout: ActivationLayout | None,
        output_layout: ActivationLayout | None,
    ) -> None:
        super().__init__()
        self.model, self.input_layout, self.output_layout = model, input_layout, output_layout
        self._autocast = autocast

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs if self.input_layout is None else self.input_layout.unpack(inputs)
        with self._autocast():
            outputs = self.model(x)
        return outputs if self.output_layout is None else self.output_layout.pack(outputs)


def example_inputs(config: Config, samples: int, device: torch.device) -> Tensor:
    """Return zeros with the shape and type of the complete model's inputs as they are fed."""
    dtype = getattr(torch, config.dataset.dtype)
    return torch.zeros(samples, *config.model.input_shape, dtype=dtype, device=device)


def run_passes(
    module: nn.Module,
    inputs: Sequence[Tensor],
    forwards_ahead: int = 1,
    loss: Callable[[int, Tensor], Tensor] = lambda number, outputs: outputs,
) -> None:
    """Run the passes of one step's micro-batches through one stage, in the order of the schedule: the first
    `forwards_ahead` micro-batches go forward at once; after that, backward and forward passes alternate.

    `loss` returns the loss of a micro-batch from its number and outputs. Outputs get gradients of ones.
    """
    module.zero_grad()
    pending: deque[Tensor] = deque()
    for number in range(len(inputs) + forwards_ahead - 1):
        if number < len(inputs):
            inputs[number].grad = None
            pending.append(loss(number, module(inputs[number])))
        if number >= forwards_ahead - 1:
            outputs = pending.popleft()
            if outputs.requires_grad:  # layers without weights that read samples have no gradient
                outputs.backward(torch.ones_like(outputs))


def measure_node_costs(
    network: Network,
    config: Config,
    samples: int,
    device: torch.device,
    precision: Precision,
    synchronize: Callable[[], None],
) -> list[float]:
    """Measure the seconds of forward and backward of that many samples for each node.

    A segment between two possible cuts counts as the cost of its last node. Only one segment at a time has its weights
    in memory.
    """
    costs = dict.fromkeys((node.name for node in network.nodes), 0.0)
    for segment in cut_into_segments(network):
        model = build_network_module(segment.network(config.model.name), config, device).to(device)
        module = StageModule(model, precision.autocast, None, None)
        inputs = example_inputs(config, samples, device)  # the first segment's inputs need no gradient
        if segment.index:
            inputs = torch.randn(samples, *segment.source.shape, device=device, requires_grad=True)
        costs[segment.output.name] = measure_median_s(partial(run_passes, module, [inputs]), synchronize, COST_REPEATS)
    return [costs[node.name] for node in network.nodes]


def cut_into_segments(network: Network) -> Iterator[NetworkStage]:
    """Cut the network wherever that is possible."""
    ends = [0, *find_cuts(network), len(network.nodes) - 1]
    for index, (first, last) in enumerate(pairwise(ends)):
        yield NetworkStage(index, tuple(network.nodes[first + 1 : last + 1]), network.nodes[first])
