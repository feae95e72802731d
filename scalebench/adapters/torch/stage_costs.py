"""What each node of a network costs, by what `strategy.options.split` balances over the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from scalebench.adapters.torch.precision import Precision
from scalebench.adapters.torch.stage_module import StageModule, built, example
from scalebench.adapters.torch.stage_work import Work, median_s
from scalebench.spec import Config
from scalebench.workloads.network import Network
from scalebench.workloads.partition import NetworkStage, find_cuts, node_parameter_bytes, node_training_flops

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
