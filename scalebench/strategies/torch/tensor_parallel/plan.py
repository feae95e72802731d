"""Planning which dense layers of a network are split over devices, and how (without torch).

A layer is split by columns (each device has some of its outputs) or by rows (some of its inputs). Two consecutive
layers with only elementwise operations in between can be split as a pair, by columns and then by rows, without any
communication between them. In an attention, query, key and value are split by columns, which are complete heads, and
the projection after it by rows (Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3). Of all ways to split a chain
of layers the planner takes the one that sends least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scalebench.workloads.network import Network, Node

COLUMNS, ROWS = "columns", "rows"
ELEMENTWISE = ("relu", "gelu", "dropout")
# How often a ring sends each element of the result, up to a common factor: an all-reduce is a reduce-scatter followed
# by an all-gather.
RING_PASSES = {"all_reduce": 2, "all_gather": 1}


class ActivationMessage(NamedTuple):
    """A collective operation on one sample's activation in one pass; `width` is the activation's last axis."""

    kind: str  # "all_reduce" | "all_gather"
    positions: int
    width: int


@dataclass(frozen=True)
class Split:
    """One dense layer split over all devices. Between the layers of a pair the activation stays split."""

    layer: str
    by: str  # COLUMNS | ROWS
    paired: bool
    forward: tuple[ActivationMessage, ...] = ()
    backward: tuple[ActivationMessage, ...] = ()
    between: tuple[str, ...] = ()  # elementwise nodes after it, up to the other layer of the pair
    shared: str | None = None  # in an attention: the node that only query, key and value read


class _SplitChoice(NamedTuple):
    """One way to split some layers. The smallest tuple is the best: first by the parameters that are not split."""

    unsplit: int  # parameters of which every device has all
    sent: int  # elements sent for one sample, each counted as often as a ring sends it
    splits: tuple[Split, ...] = ()

    def then(self, other: _SplitChoice) -> _SplitChoice:
        return _SplitChoice(self.unsplit + other.unsplit, self.sent + other.sent, self.splits + other.splits)


def plan_splits(network: Network, devices: int, include_single: bool = True) -> list[Split]:
    """Return the layers to split, in forward order; without `include_single` only those of pairs.

    Every device gets a part of a split layer: a layer that is too narrow for that is not split.
    """
    with_gradient = _nodes_with_gradient(network)
    splits = [split for node in network.nodes for split in _attention_splits(network, node, devices, with_gradient)]
    for chain in _dense_chains(network, {split.layer for split in splits}):
        splits += _choose_splits(chain, devices, include_single, with_gradient).splits
    order = [node.name for node in network.nodes]
    return sorted(splits, key=lambda split: order.index(split.layer))


def can_share(width: int, devices: int) -> bool:
    """Return True if each device gets a part from torch.chunk, whose last parts may be smaller or missing."""
    return -(-width // devices) * (devices - 1) < width


class _DenseLink(NamedTuple):
    """A dense layer, and the elementwise nodes after it up to the next dense layer."""

    node: Node
    between: tuple[str, ...]


def _choose_splits(
    chain: Sequence[_DenseLink], devices: int, include_single: bool, with_gradient: set[str]
) -> _SplitChoice:
    """Choose the best splits by dynamic programming from the last layer on.

    The best splits of the rest of a chain do not depend on those of its beginning.
    """
    best = [_SplitChoice(0, 0)]
    for at in reversed(range(len(chain))):
        node, between = chain[at]
        choices = [_SplitChoice(math.prod(node.arrays[0].shape), 0).then(best[0])]
        if include_single:
            choices += [_rate_splits(split).then(best[0]) for split in _single_splits(node, devices, with_gradient)]
        if at + 1 < len(chain) and can_share(node.shape[-1], devices):
            pair = _pair_splits(node, between, chain[at + 1].node, with_gradient)
            choices.append(_rate_splits(*pair).then(best[1]))
        best.insert(0, min(choices, key=lambda choice: choice[:2]))
    return best[0]


def _single_splits(node: Node, devices: int, with_gradient: set[str]) -> Iterator[Split]:
    """Yield the possible splits of a layer by itself.

    By columns, its output is gathered and the gradient of its input, to which all columns add, is summed up. By rows,
    the output is summed up and that gradient gathered.
    """
    inputs, outputs = node.arrays[0].shape
    has_gradient = node.inputs[0] in with_gradient
    if can_share(outputs, devices):
        backward = [_message("all_reduce", node, inputs)] if has_gradient else []
        yield Split(node.name, COLUMNS, False, (_message("all_gather", node, outputs),), tuple(backward))
    if can_share(inputs, devices):
        backward = [_message("all_gather", node, inputs)] if has_gradient else []
        yield Split(node.name, ROWS, False, (_message("all_reduce", node, outputs),), tuple(backward))


def _pair_splits(first: Node, between: tuple[str, ...], second: Node, with_gradient: set[str]) -> tuple[Split, Split]:
    inputs, outputs = first.arrays[0].shape[0], second.shape[-1]
    backward = [_message("all_reduce", first, inputs)] if first.inputs[0] in with_gradient else []
    return (
        Split(first.name, COLUMNS, True, (), tuple(backward), between),
        Split(second.name, ROWS, True, (_message("all_reduce", second, outputs),)),
    )


def _attention_splits(network: Network, node: Node, devices: int, with_gradient: set[str]) -> list[Split]:
    """Return the splits of the dense layers around an attention.

    There are none unless the devices can share its heads equally and nothing else is between these layers.
    """
    if node.op != "attention" or node.settings["heads"] % devices:
        return []
    readers = _readers(network)
    projections = [other for other in network.nodes if other.name in node.inputs]
    following = readers[node.name]
    sources = {name for projection in projections for name in projection.inputs}
    layers = [*projections, *following]
    if {layer.op for layer in layers} != {"dense"} or len(following) != 1 or len(sources) != 1:
        return []
    (output,), (shared,) = following, sources
    read_by_node_only = all(readers[projection.name] == [node] for projection in projections)
    if not read_by_node_only or readers[shared] != projections or shared not in with_gradient:
        return []
    backward = (_message("all_reduce", projections[0], projections[0].arrays[0].shape[0]),)  # one sum for all three
    splits = [Split(projection.name, COLUMNS, True, shared=shared) for projection in projections]
    splits[0] = replace(splits[0], backward=backward)
    forward = (_message("all_reduce", output, output.shape[-1]),)
    return [*splits, Split(output.name, ROWS, True, forward, shared=shared)]


def _message(kind: str, node: Node, width: int) -> ActivationMessage:
    return ActivationMessage(kind, math.prod(node.shape[:-1]), width)


def _rate_splits(*splits: Split) -> _SplitChoice:
    messages = [message for split in splits for message in (*split.forward, *split.backward)]
    sent = sum(RING_PASSES[message.kind] * message.positions * message.width for message in messages)
    return _SplitChoice(0, sent, splits)


def _dense_chains(network: Network, excluded: set[str]) -> Iterator[list[_DenseLink]]:
    """Yield the chains of dense layers that are connected by elementwise operations only, without other readers.

    Layers of `excluded` are in no chain.
    """
    dense = {node.name: node for node in network.nodes if node.op == "dense" and node.name not in excluded}
    readers = _readers(network)
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
