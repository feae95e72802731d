"""Cuts a network into stages that run one behind the other, each on a device of its own. Layer 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scalebench.workloads.network import Network, Node


class Stage(NamedTuple):
    """A run of neighbouring nodes of a network: it reads the one value that the stage before ends with."""

    index: int
    nodes: tuple[Node, ...]  # without the network's input
    source: Node  # what it reads: the network's input, or the last node of the stage before

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    def network(self, name: str) -> Network:
        """The stage as a network of its own, whose input is called as what it reads."""
        raise NotImplementedError


def cuts(network: Network) -> list[int]:
    """Positions in `network.nodes` behind which it can be cut: only that node's output is read by later ones, so that
    branches stay together. The input and the output are none."""
    raise NotImplementedError


def partition(network: Network, stages: int, costs: Sequence[float]) -> list[Stage]:
    """The network in so many stages whose dearest is as cheap as can be; `costs` is of each node of the network.

    Raises InputError where there are fewer places to cut than it takes, in words that say so.
    """
    raise NotImplementedError


def parameter_bytes(network: Network) -> list[float]:
    """Of each node: what balances memory."""
    raise NotImplementedError


def flops(network: Network) -> list[float]:
    """Of each node, of training on one sample: what balances work where nobody measured it."""
    raise NotImplementedError
