"""Cut work up for pipelines: a network into consecutive stages, and batches into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.workloads import datasets
from scalebench.workloads.network import FLOAT_BYTES, Network, Node
from scalebench.workloads.source import Source


@dataclass(frozen=True)
class NetworkStage:
    """A run of consecutive nodes of a network, which reads only the output of the stage before it."""

    index: int  # from the input on
    nodes: tuple[Node, ...]  # without the network's input
    source: Node  # the node whose output it reads: the network's input or the last node of the stage before

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    @property
    def parameter_bytes(self) -> int:
        return FLOAT_BYTES * sum(
            math.prod(array.shape) for node in self.nodes for array in node.arrays if array.trainable
        )

    def network(self, name: str) -> Network:
        """Return the stage as a network, whose input has the name of the node that the stage reads."""
        network = Network(name, self.source.shape)
        network.input = Node(self.source.name, "input", (), self.source.shape)
        network.nodes = [network.input, *self.nodes]
        return network


def find_cuts(network: Network) -> list[int]:
    """Return the positions in `network.nodes` behind which the network can be cut.

    Later nodes read only the output of the node at such a position, so branches stay together. The input and the
    output are not among them.
    """
    last_reader = {name: position for position, node in enumerate(network.nodes) for name in node.inputs}
    cuts, reach = [], 0  # reach: the last position that reads any earlier node
    for position, node in enumerate(network.nodes[:-1]):
        if node.op != "input" and reach <= position:
            cuts.append(position)
        reach = max(reach, last_reader.get(node.name, 0))
    return cuts


def max_stages(network: Network) -> int:
    """Return the largest number of stages that all have weights: an optimizer cannot work without any."""
    ends = [0, *find_cuts(network), len(network.nodes) - 1]
    return max(1, sum(_has_weights(network.nodes[a + 1 : b + 1]) for a, b in pairwise(ends)))


def impossible_stages_reasons(network: Network, stages: int) -> Iterator[str]:
    """Yield why the network cannot be cut into that many stages; nothing if it can."""
    limit = max_stages(network)
    if not 1 <= stages <= limit:
        possible = "1 stage" if limit == 1 else f"{limit} stages"
        way_out = "lower gpus" if stages > limit else "use at least 1"
        yield f"model {network.name} can be cut into at most {possible}, the strategy needs {stages}: {way_out}"


def split_into_stages(network: Network, stages: int, costs: Sequence[float]) -> list[NetworkStage]:
    """Cut the network into `stages` stages such that the most expensive one is as cheap as possible.

    `costs` has one non-negative number per node of the network: bytes or operations; that of the input is
    ignored. Every stage has weights. Among equally good cuts those win that send the least data on, and among
    these the latest, so that a relu stays with the layer before it. The result is exact, by dynamic programming over
    the possible cuts.

    Raises InputError where the network has fewer stages than that, and ValueError for costs that do not match the
    nodes.
    """
    nodes = network.nodes
    for reason in impossible_stages_reasons(network, stages):
        raise InputError(reason)
    ends = _stage_ends(network, stages, costs)
    return [NetworkStage(index, tuple(nodes[a + 1 : b + 1]), nodes[a]) for index, (a, b) in enumerate(pairwise(ends))]


def node_parameter_bytes(network: Network) -> list[float]:
    """Return the float32 bytes of each node's trainable parameters: costs that balance memory."""
    return [FLOAT_BYTES * sum(math.prod(a.shape) for a in node.arrays if a.trainable) for node in network.nodes]


def node_training_flops(network: Network) -> list[float]:
    """Return each node's FLOPs of training on one sample: costs that balance work.

    They count as Network.training_flops does: 6 per multiply-add, and 0 for nodes without any.
    """
    return [6 * node.macs for node in network.nodes]


COUNTED_COSTS = {"flops": node_training_flops, "size": node_parameter_bytes}  # by strategy.options.split


def _stage_ends(network: Network, stages: int, costs: Sequence[float]) -> list[int]:
    """Return the position of the input, then that of the last node of each stage."""
    positions = [0, *find_cuts(network), len(network.nodes) - 1]
    total_costs = list(accumulate(costs))
    weights = list(accumulate(int(_has_weights([node])) for node in network.nodes))
    worst, ends = 0.0, tuple[int, ...]()
    for _ in range(2):  # once the cost of the most expensive stage is known, paths differ in what they send alone
        # By its end: the most expensive stage of the best path, the numbers that it sends, and its negated ends.
        paths: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (worst, 0, ())}
        for _ in range(stages):
            longer = {}
            for b in positions[1:]:
                sent = math.prod(network.nodes[b].shape)
                options = [
                    (max(most, total_costs[b] - total_costs[a]), so_far + sent, (*path, -b))
                    for a, (most, so_far, path) in paths.items()
                    if a < b and (stages == 1 or weights[b] > weights[a])
                ]
                if options:
                    longer[b] = min(options)
            paths = longer
        worst, _, ends = paths[positions[-1]]
    return [0, *(-end for end in ends)]


def _has_weights(nodes: Sequence[Node]) -> bool:
    return any(array.trainable for node in nodes for array in node.arrays)


class BatchSize(NamedTuple):
    """The samples of one batch: in one replica's part, and over all replicas."""

    samples: int
    global_samples: int


def epoch_batch_sizes(spec: RunSpec, replica: int, replicas: int) -> list[BatchSize]:
    """Return the sizes of the first and of the last batch of an epoch, as this replica reads them.

    No samples are made for it. Raises InputError as Source does.
    """
    samples = datasets.count_train_samples(spec.config.dataset)
    rows = np.broadcast_to(np.float32(0), (samples,))  # an array of that length which takes no memory
    source = Source(
        rows, rows, global_batch=spec.global_batch, seed=0, replica=replica, replicas=replicas, devices=spec.gpus
    )
    last = 0 if spec.config.dataset.feed == "fixed" else source.steps_per_epoch - 1
    return [BatchSize(len(source.batch_indices(0, update)), source.global_samples(update)) for update in (0, last)]


def default_micro_batches(spec: RunSpec, replicas: int, stages: int) -> int:
    """Return the number of micro-batches for a run that does not set it.

    It is the smallest common divisor of all batches of all replicas from 2 * stages on, where the pipeline bubble
    (p - 1) / (m + p - 1) is at most a third; without such a divisor the largest one from `stages` on. If there is none
    either, it is 2 * stages, and indivisible_reason then names the batch that cannot be divided.
    """
    samples = {size.samples for replica in {0, replicas - 1} for size in epoch_batch_sizes(spec, replica, replicas)}
    common = math.gcd(*samples)
    divisors = [number for number in range(stages, common + 1) if common % number == 0]
    preferred = [number for number in divisors if number >= 2 * stages]
    return min(preferred) if preferred else max(divisors, default=2 * stages)


def indivisible_reason(sizes: list[BatchSize], micro_batches: int) -> str | None:
    """Return why the batches of epoch_batch_sizes cannot be split into equal micro-batches; None if they can."""
    for which, size in zip(("a batch", "the last batch of an epoch"), sizes, strict=True):
        if size.samples % micro_batches:
            return (
                f"{which} has {size.samples} samples, which do not divide into {micro_batches} micro-batches: change "
                f"strategy.options.micro_batches, the batch (train.batch_per_device) or dataset.size"
            )
    return None
