"""The hosts of a run: read, counted, and who stands on them."""

from __future__ import annotations

import pytest

from scalebench.config import placement
from scalebench.core.errors import InputError
from scalebench.core.spec import Place


def test_names_and_slots() -> None:
    assert placement.parse(["node1:8", "node-2.cluster.org:4", "10.0.0.3"]) == [
        ("node1", 8),
        ("node-2.cluster.org", 4),
        ("10.0.0.3", 1),
    ]
    assert placement.parse([]) == []


@pytest.mark.parametrize(
    "host", ["", "a:", "a:x", "a:0", "a:-1", "a:1:2", "a b:1", "-x:1", "--host:1", "a:1,b:1", "a;b"]
)
def test_nonsense_is_refused(host: str) -> None:
    """Also what mpirun would take for an option of its own."""
    with pytest.raises(InputError) as caught:
        placement.parse(["good:1", host])
    assert str(caught.value) == f"hardware.hosts: '{host}' should be NAME:SLOTS, such as node1:8"


def test_a_host_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(InputError, match="names a twice; add up its slots"):
        placement.parse(["a:2", "b:2", "a:1"])


def test_too_few_slots() -> None:
    words = "hardware.hosts has 3 slots for 4 processes; give the hosts more slots or lower gpus"
    assert placement.shortage(["a:2", "b"], 4) == words
    assert placement.shortage(["a:2", "b"], 3) is None
    assert placement.shortage([], 400) is None, "this machine, where more ranks than cores are allowed"


def standing(*nodes: int) -> list[Place]:
    return [Place(rank, nodes[:rank].count(node), node, [], [], 1) for rank, node in enumerate(nodes)]


def test_the_first_host_is_node_0() -> None:
    places = standing(0, 0, 1, 2, 2)
    assert placement.of_places(["a:2", "b:1", "c:4"], places) == ["a", "a", "b", "c", "c"]
    assert placement.of_places([], standing(0, 0)) == ["localhost", "localhost"]
