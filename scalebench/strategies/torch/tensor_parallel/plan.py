"""Planning which dense layers of a network are split over devices, and how (without torch).

A layer is split by columns (each device has some of its outputs) or by rows (some of its inputs). Two consecutive
layers with only elementwise operations in between can be split as a pair, by columns and then by rows, without any
communication between them. In an attention, query, key and value are split by columns, which are complete heads, and
the projection after it by rows (Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3). Of all ways to split a chain
of layers the planner takes the one that sends least.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scalebench.workloads.network import Network, Node

COLUMNS, ROWS = "columns", "rows"
ELEMENTWISE = ("relu", "gelu", "dropout")


class Split(NamedTuple):
    """One dense layer split over all devices. Between the layers of a pair the activation stays split."""

    layer: str
    by: str  # COLUMNS | ROWS
    paired: bool
    between: tuple[str, ...] = ()  # elementwise nodes after it, up to the other layer of the pair
    shared: str | None = None  # in an attention: the node that only query, key and value read


def plan_splits(network: Network, devices: int, include_single: bool = True) -> list[Split]:
    """Return the layers to split, in forward order; without `include_single` only those of pairs.

    Every device gets a part of a split layer: a layer that is too narrow for that is not split.
    """
    readers, with_gradient = _readers(network), _nodes_with_gradient(network)
    attentions = [node for node in network.nodes if node.op == "attention" and node.settings["heads"] % devices == 0]
    splits = [split for node in attentions for split in _split_attention(network, node, readers, with_gradient)]
    for chain in _dense_chains(network, {split.layer for split in splits}, readers):
        splits += _split_chain(chain, devices, include_single, with_gradient)
    order = [node.name for node in network.nodes]
    return sorted(splits, key=lambda split: order.index(split.layer))


def can_share(width: int, devices: int) -> bool:
    """Return True if each device gets a part from torch.chunk, whose last parts may be smaller or missing."""
    return -(-width // devices) * (devices - 1) < width


class _DenseLink(NamedTuple):
    """A dense layer, and the elementwise nodes after it up to the next dense layer."""

    node: Node
    between: tuple[str, ...]


def _split_chain(
    chain: Sequence[_DenseLink], devices: int, include_single: bool, with_gradient: set[str]
) -> tuple[Split, ...]:
    """Return the splits that leave the fewest parameters complete on every device, and of these the ones that send
    least. Each element counts as often as a ring sends it: an all-reduce is a reduce-scatter and an all-gather.

    By columns, a layer's output is gathered and the gradient of its input, to which all columns add, is summed up; by
    rows, its output is summed up and that gradient gathered. A pair sends what its first layer does backward, and its
    second one forward.
    """

    @functools.cache
    def choose(at: int) -> tuple[int, int, tuple[Split, ...]]:
        """Return the best splits from a layer of the chain on, after what they cost."""
        if at == len(chain):
            return 0, 0, ()
        node, between = chain[at]
        inputs, outputs = node.arrays[0].shape
        output, gradient = math.prod(node.shape), math.prod(node.shape[:-1]) * inputs
        gradient *= node.inputs[0] in with_gradient
        ways: list[tuple[int, int, tuple[Split, ...]]] = [(inputs * outputs, 0, ())]
        if include_single and can_share(outputs, devices):
            ways.append((0, output + 2 * gradient, (Split(node.name, COLUMNS, False),)))
        if include_single and can_share(inputs, devices):
            ways.append((0, 2 * output + gradient, (Split(node.name, ROWS, False),)))
        if at + 1 < len(chain) and can_share(outputs, devices):
            second = chain[at + 1].node
            pair = Split(node.name, COLUMNS, True, between), Split(second.name, ROWS, True)
            ways.append((0, 2 * gradient + 2 * math.prod(second.shape), pair))
        totals = []
        for complete, sent, splits in ways:
            rest = choose(at + (len(splits) or 1))
            totals.append((complete + rest[0], sent + rest[1], splits + rest[2]))
        return min(totals, key=lambda total: total[:2])

    return choose(0)[2]


def _split_attention(
    network: Network, node: Node, readers: dict[str, list[Node]], with_gradient: set[str]
) -> list[Split]:
    """Return the splits of the dense layers around an attention; none if anything else is between these layers."""
    projections, following = [other for other in network.nodes if other.name in node.inputs], readers[node.name]
    sources = {name for projection in projections for name in projection.inputs}
    if {layer.op for layer in [*projections, *following]} != {"dense"} or len(following) != 1 or len(sources) != 1:
        return []
    (output,), (shared,) = following, sources
    read_by_node_only = all(readers[projection.name] == [node] for projection in projections)
    if not read_by_node_only or readers[shared] != projections or shared not in with_gradient:
        return []
    splits = [Split(projection.name, COLUMNS, True, shared=shared) for projection in projections]
    return [*splits, Split(output.name, ROWS, True, shared=shared)]


def _dense_chains(network: Network, excluded: set[str], readers: dict[str, list[Node]]) -> Iterator[list[_DenseLink]]:
    """Yield the chains of dense layers that are connected by elementwise operations only, without other readers.

    Layers of `excluded` are in no chain.
    """
    dense = {node.name: node for node in network.nodes if node.op == "dense" and node.name not in excluded}
    links = {name: _next_dense(node, readers) for name, node in dense.items()}
    followers = {following for _, following in links.values()}
    for first in dense.keys() - followers:
        chain, name = [], first
        while name in dense:
            between, following = links[name]
            chain.append(_DenseLink(dense[name], between))
            name = following
        yield chain


def _next_dense(node: Node, readers: dict[str, list[Node]]) -> tuple[tuple[str, ...], str]:
    """Return (elementwise nodes after this one, the dense layer that alone reads them; "" if there is none)."""
    between: list[str] = []
    while len(reading := readers[node.name]) == 1:
        (node,) = reading
        if node.op == "dense":
            return tuple(between), node.name
        if node.op not in ELEMENTWISE:
            break
        between.append(node.name)
    return (), ""


def _readers(network: Network) -> dict[str, list[Node]]:
    """Return the readers of each node's output, in forward order."""
    readers: dict[str, list[Node]] = {node.name: [] for node in network.nodes}
    for node in network.nodes:
        for name in dict.fromkeys(node.inputs):
            readers[name].append(node)
    return readers


def _nodes_with_gradient(network: Network) -> set[str]:
    """Return the nodes whose outputs have a gradient, because they depend on trained arrays."""
    names: set[str] = set()
    for node in network.nodes:
        if any(array.trainable for array in node.arrays) or names.intersection(node.inputs):
            names.add(node.name)
    return names
