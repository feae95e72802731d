"""Planning which dense layers of a network are split over devices, and how (without torch).

A layer is split by columns (each device has some of its outputs) or by rows (some of its inputs). Two consecutive
layers with only elementwise operations in between can be split as a pair, by columns and then by rows, without any
communication between them. In an attention, query, key and value are split by columns, which are complete heads, and
the projection after it by rows (Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3).
"""

from __future__ import annotations

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

    Every device gets a part of a split layer: a layer that is too narrow for that is not split. Pairs are formed from
    the last layer on.
    """
    readers, with_gradient = _readers(network), _nodes_with_gradient(network)
    nodes = {node.name: node for node in network.nodes}
    splits: dict[str, Split] = {}
    for node in network.nodes:
        if node.op == "attention" and node.settings["heads"] % devices == 0:
            splits |= {split.layer: split for split in _split_attention(network, node, readers, with_gradient)}
    for layer in reversed([node for node in network.nodes if node.op == "dense"]):
        if layer.name in splits:
            continue
        first, between = nodes[layer.inputs[0]], []
        while first.op in ELEMENTWISE and len(readers[first.name]) == 1:
            between.insert(0, first.name)
            first = nodes[first.inputs[0]]
        is_free = first.op == "dense" and first.name not in splits and len(readers[first.name]) == 1
        if is_free and can_share(first.shape[-1], devices):
            splits[first.name] = Split(first.name, COLUMNS, True, tuple(between))
            splits[layer.name] = Split(layer.name, ROWS, True)
        elif include_single and (by := _choose_single(layer, devices, layer.inputs[0] in with_gradient)):
            splits[layer.name] = Split(layer.name, by, False)
    return [splits[name] for name in nodes if name in splits]


def _choose_single(layer: Node, devices: int, has_gradient: bool) -> str | None:
    """Return how a layer by itself is split, such that it sends least; None where the devices cannot share it.

    By columns, its output is gathered and the gradient of its input, to which all columns add, is summed up; by rows,
    its output is summed up and that gradient gathered. A sum sends each element twice, and a gathering once.
    """
    inputs, outputs = layer.arrays[0].shape
    gradient = inputs if has_gradient else 0
    sent = {COLUMNS: (outputs, outputs + 2 * gradient), ROWS: (inputs, 2 * outputs + gradient)}
    ways = [by for by, (width, _) in sent.items() if can_share(width, devices)]
    return min(ways, key=lambda by: sent[by][1], default=None)


def can_share(width: int, devices: int) -> bool:
    """Return True if each device gets a part from torch.chunk, whose last parts may be smaller or missing."""
    return -(-width // devices) * (devices - 1) < width


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
