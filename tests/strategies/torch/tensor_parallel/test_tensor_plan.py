"""Which layers of each network are split, and what that sends; no processes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.strategies.torch.tensor_parallel.plan import PASSES, Split, messages, parts, plan
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from tests.strategies.torch.conftest import model_spec

FIRST_ALONE = [("rows", False), ("columns", True), ("rows", True)]
LAST_ALONE = [("rows", False)]
TWO_ALONE = [*LAST_ALONE, *LAST_ALONE]
ATTENTION = [("columns", True)] * 3 + [("rows", True)]
HEADS_APART = [("columns", False)] * 4  # 3 devices cannot share 4 heads
FEED_FORWARD = [("columns", True), ("rows", True)]
SPLIT = {
    "mlp": [("columns", True), ("rows", True), *FIRST_ALONE],
    "synthetic": [("columns", False), ("columns", True), ("rows", True)],
    **dict.fromkeys(("alexnet", "alexnet_cifar10", "vgg16"), FIRST_ALONE),
    **dict.fromkeys(("materials_cnn", "cifar10_cnn"), TWO_ALONE),
}
PAIRS = {"mlp": 2, "synthetic": 1, "alexnet": 1, "alexnet_cifar10": 1, "vgg16": 1, "materials_cnn": 1, "cifar10_cnn": 1}


def build_network(name: str) -> Network:
    spec = model_spec(name)
    spec.input_shape = networks.resolve_input_shape(spec)
    return networks.build_network(spec)


def told(splits: list[Split]) -> list[tuple[str, bool]]:
    return [(one.by, one.paired) for one in splits]


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("name", sorted({*networks.NETWORKS} - {"gpt_small"}))
def test_every_dense_layer_of_the_zoo_is_split(name: str, devices: int) -> None:
    network = build_network(name)
    splits = plan(network, devices)
    assert [one.layer for one in splits] == [node.name for node in network.nodes if node.op == "dense"]
    assert told(splits) == SPLIT.get(name, LAST_ALONE)
    pairs = plan(network, devices, lone=False)
    assert told(pairs) == [("columns", True), ("rows", True)] * PAIRS.get(name, 0)


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_an_attention_is_split_by_heads(devices: int) -> None:
    """Query, key and value read one tensor, whose gradient is summed up once."""
    network = build_network("gpt_small")
    splits = plan(network, devices)
    block = [*(HEADS_APART if devices == 3 else ATTENTION), *FEED_FORWARD]
    assert told(splits) == [*block * 4, ("columns", False)]
    shared = {one.shared for one in splits[:4]}
    assert shared == ({None} if devices == 3 else {"block1_norm1"})
    if devices != 3:
        sent = [(one.kind, one.positions, one.width) for one in messages(splits)]
        assert sent == [*[("all_reduce", 64, 256)] * 8, ("all_gather", 64, 512), *[("all_reduce", 64, 256)] * 9]


def test_an_attention_whose_inputs_others_read_is_not() -> None:
    net = Network("attention", (8,))
    x = net.embedding(net.input, "table", 5, 16)
    layers = [net.dense(x, name, 16) for name in ("query", "key", "value")]
    net.add(net.dense(net.attention(*layers, "attention", 4), "project", 16), x)
    assert [one.shared for one in plan(net, 2)] == [None] * 4


def test_what_is_sent_by_vgg16() -> None:
    """The first layer's wide input is gathered and not summed up, which is half of it."""
    assert [(one.kind, one.width) for one in messages(plan(build_network("vgg16"), 2))] == [
        ("all_reduce", 4096),
        ("all_reduce", 1000),
        ("all_reduce", 4096),
        ("all_gather", 25088),
    ]


def test_dropout_and_relu_stay_between_a_pair() -> None:
    net = build_network("cifar10_cnn")
    first, second = plan(net, 2, lone=False)
    by_name = {node.name: node for node in net.nodes}
    assert [by_name[name].op for name in first.between] == ["relu", "dropout"]
    assert second.between == () and (first.layer, second.layer) == ("dense1", "dense2")


def chain(widths: list[int], between: str = "relu") -> Network:
    """Dense layers of those widths, the first of which is the input's."""
    net = Network("chain", (widths[0],))
    x = net.input
    for number, width in enumerate(widths[1:]):
        x = net.dense(x if number == 0 else getattr(net, between)(x), f"dense{number}", width)
    return net


def test_a_layer_that_others_read_as_well_is_no_partner() -> None:
    net = Network("branches", (8,))
    first = net.relu(net.dense(net.input, "first", 8))
    net.concat(net.dense(first, "second", 8), first)
    assert [one.paired for one in plan(net, 2)] == [False, False]
    assert plan(net, 2, lone=False) == []


def test_the_gradient_of_the_data_is_not_sent() -> None:
    (only,) = plan(chain([64, 8]), 2)
    assert (only.by, [one.kind for one in only.forward], only.backward) == ("columns", ["all_gather"], ())


def test_a_layer_that_is_too_narrow_stays_whole() -> None:
    """2 outputs are nothing for 3 devices, but 5 inputs are: 2, 2 and 1."""
    assert [(one.layer, one.by) for one in plan(chain([5, 2]), 3)] == [("dense0", "rows")]
    assert plan(chain([2, 2]), 3) == []
    assert [one.layer for one in plan(chain([2, 2, 9]), 3)] == ["dense1"]


@given(st.integers(1, 500), st.integers(1, 16))
def test_parts_are_torchs(width: int, devices: int) -> None:
    import torch

    assert parts(width, devices) == (len(torch.empty(width).chunk(devices)) == devices)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(1, 4), st.booleans())
def test_no_other_plan_is_better(widths: list[int], devices: int, lone: bool) -> None:
    """Against all of them, tried one by one."""
    found = plan(chain(widths), devices, lone)
    ways = [way for way in itertools.product("crwp", repeat=len(widths) - 1) if possible(way, widths, devices, lone)]
    assert cost(found, widths) == min(cost_of(way, widths) for way in ways)


def possible(way: tuple[str, ...], widths: list[int], devices: int, lone: bool) -> bool:
    """c: columns, r: rows, w: whole, p: the second of a pair, whose first is a c."""
    for at, kind in enumerate(way):
        paired = at + 1 < len(way) and way[at + 1] == "p"
        if kind == "c" and not ((lone or paired) and parts(widths[at + 1], devices)):
            return False
        if kind == "r" and not (lone and parts(widths[at], devices)):
            return False
        if (kind == "p" and (at == 0 or way[at - 1] != "c")) or (kind in "rwp" and paired):
            return False
    return True


def cost_of(way: tuple[str, ...], widths: list[int]) -> tuple[int, int]:
    """(weights that stay whole, numbers sent, each as often as a ring sends it)."""
    whole = sent = 0
    for at, kind in enumerate(way):
        into, out = widths[at] * (at > 0), widths[at + 1]  # the data have no gradient
        paired = at + 1 < len(way) and way[at + 1] == "p"
        whole += widths[at] * out * (kind == "w")
        sent += {"c": (0 if paired else out) + 2 * into, "r": 2 * out + into, "w": 0, "p": 2 * out}[kind]
    return whole, sent


def cost(splits: list[Split], widths: list[int]) -> tuple[int, int]:
    split = {int(one.layer.removeprefix("dense")) for one in splits}
    whole = sum(math.prod(widths[at : at + 2]) for at in range(len(widths) - 1) if at not in split)
    return whole, sum(PASSES[one.kind] * one.positions * one.width for one in messages(splits))
