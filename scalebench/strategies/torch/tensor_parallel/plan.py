"""Which dense layers of a network are split over devices, and how: no torch here.

A layer is split by columns (each device has some of its outputs) or by rows (some of its inputs). Two in a row with
nothing but elementwise operations in between may be split by columns and then by rows: between them nothing is
exchanged. So are query, key and value by columns, which are whole heads, and the projection behind an attention by rows
(Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3). Of all ways to split a chain of layers the one that sends
least is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scalebench.workloads.network import Network, Node

COLUMNS, ROWS = "columns", "rows"
ELEMENTWISE = ("relu", "gelu", "dropout")
# How often a ring sends each number of the result, but for a factor that is the same: an all-reduce is a
# reduce-scatter and then an all-gather.
PASSES = {"all_reduce": 2, "all_gather": 1}


class Message(NamedTuple):
    """What all devices exchange for one sample in one pass; `width` is the last axis of the activation."""

    kind: str  # "all_reduce" | "all_gather"
    positions: int
    width: int

    def numbers(self, devices: int) -> int:
        """Of the whole; the parts that are gathered are made equal in size first."""
        width = self.width if self.kind == "all_reduce" else -(-self.width // devices) * devices
        return self.positions * width


@dataclass(frozen=True)
class Split:
    """One dense layer over all devices. A paired one shares an activation with its partner that stays split."""

    layer: str
    by: str  # COLUMNS | ROWS
    paired: bool
    forward: tuple[Message, ...] = ()
    backward: tuple[Message, ...] = ()
    between: tuple[str, ...] = ()  # elementwise nodes behind it, up to its partner
    shared: str | None = None  # of an attention's: the node that query, key and value read, and nobody else


class _Choice(NamedTuple):
    """Of ways to split layers, the smallest is the best one: first how much of them stays whole."""

    whole: int  # parameters that every device has all of
    sent: int  # numbers for one sample, each as often as a ring sends it
    splits: tuple[Split, ...] = ()

    def then(self, other: _Choice) -> _Choice:
        return _Choice(self.whole + other.whole, self.sent + other.sent, self.splits + other.splits)


def plan(network: Network, devices: int, lone: bool = True) -> list[Split]:
    """The layers that are split, in forward order; without `lone` only those of pairs. No device goes without a part
    of a layer: one that is too narrow for that stays whole."""
    learning = _behind_parameters(network)
    splits = [split for node in network.nodes for split in _attention(network, node, devices, learning)]
    for chain in _chains(network, {split.layer for split in splits}):
        splits += _best(chain, devices, lone, learning).splits
    order = [node.name for node in network.nodes]
    return sorted(splits, key=lambda split: order.index(split.layer))


def messages(splits: Sequence[Split]) -> list[Message]:
    """Of one update, in the order in which they are sent."""
    forward = [message for split in splits for message in split.forward]
    return forward + [message for split in reversed(splits) for message in split.backward]


def parts(width: int, devices: int) -> bool:
    """Whether each device gets a part, as torch.chunk deals: equal ones, and the last ones take what is left."""
    return -(-width // devices) * (devices - 1) < width


class _Link(NamedTuple):
    """A dense layer, and the elementwise nodes behind it up to the next one."""

    node: Node
    between: tuple[str, ...]


def _best(chain: Sequence[_Link], devices: int, lone: bool, learning: set[str]) -> _Choice:
    """From the last layer on: what is best for the rest of a chain does not depend on how it began."""
    best = [_Choice(0, 0)]
    for at in reversed(range(len(chain))):
        node, between = chain[at]
        ways = [_Choice(math.prod(node.arrays[0].shape), 0).then(best[0])]
        ways += [_choice(split).then(best[0]) for split in _alone(node, devices, learning) if lone]
        if at + 1 < len(chain) and parts(node.shape[-1], devices):
            ways.append(_choice(*_pair(node, between, chain[at + 1].node, learning)).then(best[1]))
        best.insert(0, min(ways, key=lambda way: way[:2]))
    return best[0]


def _alone(node: Node, devices: int, learning: set[str]) -> Iterator[Split]:
    """By columns its output is gathered, and the gradient of its input, to which all columns add, is summed up. By rows
    the output is summed up, and that gradient gathered."""
    into, out = node.arrays[0].shape
    learns = node.inputs[0] in learning
    if parts(out, devices):
        backward = [_message("all_reduce", node, into)] if learns else []
        yield Split(node.name, COLUMNS, False, (_message("all_gather", node, out),), tuple(backward))
    if parts(into, devices):
        backward = [_message("all_gather", node, into)] if learns else []
        yield Split(node.name, ROWS, False, (_message("all_reduce", node, out),), tuple(backward))


def _pair(first: Node, between: tuple[str, ...], second: Node, learning: set[str]) -> tuple[Split, Split]:
    into, out = first.arrays[0].shape[0], second.shape[-1]
    backward = [_message("all_reduce", first, into)] if first.inputs[0] in learning else []
    return (
        Split(first.name, COLUMNS, True, (), tuple(backward), between),
        Split(second.name, ROWS, True, (_message("all_reduce", second, out),)),
    )


def _attention(network: Network, node: Node, devices: int, learning: set[str]) -> list[Split]:
    """The layers around an attention whose heads the devices can share equally; none where there are others between."""
    if node.op != "attention" or node.settings["heads"] % devices:
        return []
    readers = _readers(network)
    firsts = [other for other in network.nodes if other.name in node.inputs]
    behind = readers[node.name]
    sources = {name for first in firsts for name in first.inputs}
    layers = [*firsts, *behind]
    if {layer.op for layer in layers} != {"dense"} or len(behind) != 1 or len(sources) != 1:
        return []
    (project,), (shared,) = behind, sources
    alone = all(readers[first.name] == [node] for first in firsts)
    if not alone or readers[shared] != firsts or shared not in learning:
        return []
    backward = (_message("all_reduce", firsts[0], firsts[0].arrays[0].shape[0]),)  # of what all three add to
    splits = [Split(first.name, COLUMNS, True, shared=shared) for first in firsts]
    splits[0] = replace(splits[0], backward=backward)
    forward = (_message("all_reduce", project, project.shape[-1]),)
    return [*splits, Split(project.name, ROWS, True, forward, shared=shared)]


def _message(kind: str, node: Node, width: int) -> Message:
    return Message(kind, math.prod(node.shape[:-1]), width)


def _choice(*splits: Split) -> _Choice:
    sent = [message for split in splits for message in (*split.forward, *split.backward)]
    return _Choice(0, sum(PASSES[one.kind] * one.positions * one.width for one in sent), splits)


def _chains(network: Network, others: set[str]) -> Iterator[list[_Link]]:
    """Dense layers, but for those of `others`, that read each other through elementwise operations at most, with nobody
    else reading in between."""
    dense = {node.name: node for node in network.nodes if node.op == "dense" and node.name not in others}
    readers = _readers(network)
    onward = {name: _onward(node, readers) for name, node in dense.items()}
    followers = {after for _, after in onward.values()}
    for first in dense.keys() - followers:
        chain, name = [], first
        while name in dense:
            between, after = onward[name]
            chain.append(_Link(dense[name], between))
            name = after
        yield chain


def _onward(node: Node, readers: dict[str, list[Node]]) -> tuple[tuple[str, ...], str]:
    """(elementwise nodes behind it, the dense layer that they alone lead to; "": there is none)."""
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
    """Of each node's output, in forward order."""
    found: dict[str, list[Node]] = {node.name: [] for node in network.nodes}
    for node in network.nodes:
        for name in dict.fromkeys(node.inputs):
            found[name].append(node)
    return found


def _behind_parameters(network: Network) -> set[str]:
    """Nodes whose outputs have a gradient: they depend on what is trained."""
    found: set[str] = set()
    for node in network.nodes:
        if any(array.trainable for array in node.arrays) or found.intersection(node.inputs):
            found.add(node.name)
    return found
