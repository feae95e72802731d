"""Cuts a network into stages that run one behind the other, each on a device of its own. Layer 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from scalebench.spec import InputError
from scalebench.workloads.network import Network, Node

FLOAT_BYTES = 4  # parameters are float32, and so are activations unless a precision is asked for


@dataclass(frozen=True)
class Stage:
    """A run of neighbouring nodes of a network: it reads the one value that the stage before ends with."""

    index: int  # from the input on
    nodes: tuple[Node, ...]  # without the network's input
    source: Node  # what it reads: the network's input, or the last node of the stage before

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    def network(self, name: str) -> Network:
        """The stage as a network of its own, whose input is called as what it reads."""
        network = Network(name, self.source.shape)
        network.input = Node(self.source.name, "input", (), self.source.shape)
        network.nodes = [network.input, *self.nodes]
        return network


def cuts(network: Network) -> list[int]:
    """Positions in `network.nodes` behind which it can be cut: only that node's output is read by later ones, so that
    branches stay together. The input and the output are none."""
    last_read = {name: position for position, node in enumerate(network.nodes) for name in node.inputs}
    found, reach = [], 0  # the last position that reads anything of before
    for position, node in enumerate(network.nodes[:-1]):
        if node.op != "input" and reach <= position:
            found.append(position)
        reach = max(reach, last_read.get(node.name, 0))
    return found


def most_stages(network: Network) -> int:
    """How many stages there can be with weights in each: an optimizer has nothing to do where there are none."""
    ends = [0, *cuts(network), len(network.nodes) - 1]
    return max(1, sum(_has_weights(network.nodes[a + 1 : b + 1]) for a, b in pairwise(ends)))


def partition(network: Network, stages: int, costs: Sequence[float]) -> list[Stage]:
    """The network in so many stages whose dearest is as cheap as can be; `costs` is of each node of the network.

    Each stage holds weights. Among cuts that are as good, those win that send the least on, and of these the latest:
    a relu stays with the layer before it. Exact, by dynamic programming over the places to cut.

    `costs` may be bytes, operations or measured seconds, none of them below 0; the input counts for nothing.
    Raises InputError where there are fewer places to cut than it takes, in words that say so; ValueError for costs
    that are not of these nodes.
    """
    nodes = network.nodes
    if len(costs) != len(nodes) or not all(0 <= cost < math.inf for cost in costs):
        raise ValueError(f"costs of the {len(nodes)} nodes of {network.name} should be as many numbers from 0 on")
    most = most_stages(network)
    if not 1 <= stages <= most:
        possible = "1 stage" if most == 1 else f"{most} stages"
        way_out = "lower gpus" if stages > most else "ask for at least 1"
        raise InputError(
            f"model {network.name} can be cut into at most {possible}, the strategy asks for {stages}: {way_out}"
        )
    ends = _ends(network, stages, costs)
    return [Stage(index, tuple(nodes[a + 1 : b + 1]), nodes[a]) for index, (a, b) in enumerate(pairwise(ends))]


def parameter_bytes(network: Network) -> list[float]:
    """Of each node: what balances memory."""
    return [FLOAT_BYTES * sum(math.prod(a.shape) for a in node.arrays if a.trainable) for node in network.nodes]


def flops(network: Network) -> list[float]:
    """Of each node, of training on one sample: what balances work where nobody measured it.

    As `Network.training_flops` counts: 6 per multiply-add, and nothing where there are none.
    """
    return [6 * node.macs for node in network.nodes]


def activation_bytes(stage: Stage) -> int:
    """Of a stage's output over one sample, float32: what it sends on, unless it is the last one."""
    return FLOAT_BYTES * math.prod(stage.output.shape)


def _ends(network: Network, stages: int, costs: Sequence[float]) -> list[int]:
    """The input's position, then that of the last node of each stage."""
    places = [0, *cuts(network), len(network.nodes) - 1]
    spent = list(accumulate(costs))
    weights = list(accumulate(int(_has_weights([node])) for node in network.nodes))
    sent = [math.prod(node.shape) for node in network.nodes]

    def cost(a: int, b: int) -> float:
        """Of the nodes behind a up to b; infinite for what is no stage."""
        return spent[b] - spent[a] if stages == 1 or weights[b] > weights[a] else math.inf

    dearest, _ = _least(places, stages, lambda value, a, b: max(value, cost(a, b)))
    _, ends = _least(places, stages, lambda value, a, b: value + sent[b] if cost(a, b) <= dearest else math.inf)
    return ends


def _least(places: Sequence[int], stages: int, extended: Callable[[float, int, int], float]) -> tuple[float, list[int]]:
    """The way from the first place to the last in so many strides whose value is least, of equals the latest.

    `extended`: the value of a way that goes on from a to b, which must not fall as that of the way before rises.
    """
    ways: dict[int, tuple[float, tuple[int, ...]]] = {places[0]: (0, ())}  # by where they end; strides negated
    for _ in range(stages):
        longer = {}
        for b in places[1:]:
            options = [(extended(value, a, b), (*way, -b)) for a, (value, way) in ways.items() if a < b]
            if options:
                longer[b] = min(options)
        ways = longer
    value, way = ways[places[-1]]
    return value, [places[0], *(-end for end in way)]


def _has_weights(nodes: Sequence[Node]) -> bool:
    return any(array.trainable for node in nodes for array in node.arrays)
