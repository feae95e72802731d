"""Layers split over devices: the plans that split those of each network. That they train like complete ones is the
contract's, with dropout between them, too."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from scalebench.strategies.base import FORWARD, NotMeasured, Unsupported
from scalebench.strategies.torch.tensor_parallel.plan import can_share, plan_splits
from scalebench.strategies.torch.tensor_parallel.user_layers import plan_styles
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from tests.strategies.torch.conftest import model_spec


def test_what_a_strategy_cannot_do(strategy):
    """It refuses models without layers to split."""
    with pytest.raises(Unsupported, match="resnet20_cifar10 has no dense layer that 1 devices could share"):
        strategy("tensor_parallel", model="resnet20_cifar10", strategy__options__layers="paired")
    adapter = strategy("tensor_parallel")
    with pytest.raises(NotMeasured, match="without communication"):
        adapter.set_gradient_sync(False)
    with pytest.raises(NotMeasured, match="no part of a step"):
        adapter.partial_step(None, FORWARD)
    assert adapter.message_sizes() == []


LAST_THREE = [("rows", False), ("columns", True), ("rows", True)]
LAST_LAYER = [("rows", False)]
ATTENTION = [("columns", True)] * 3 + [("rows", True)]
HEADS_APART = [("columns", False)] * 4  # 3 devices cannot share 4 heads
FEED_FORWARD = [("columns", True), ("rows", True)]
SPLIT = {
    "mlp": [("columns", False), *FEED_FORWARD, *FEED_FORWARD],
    "synthetic": [("columns", False), ("columns", True), ("rows", True)],
    **dict.fromkeys(("alexnet", "alexnet_cifar10", "overfeat", "trivial", "vgg11", "vgg16", "vgg19"), LAST_THREE),
    **dict.fromkeys(("materials_cnn", "cifar10_cnn", "lenet"), FEED_FORWARD),
    "lstm_small": [("columns", False)],
}
PAIRS = {name: len(splits) // 2 for name, splits in SPLIT.items()}


def build_network(name):
    spec = model_spec(name)
    spec.input_shape = networks.resolve_input_shape(spec)
    return networks.build_network(spec)


def kinds_of(splits):
    return [(split.by, split.paired) for split in splits]


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("name", sorted({*networks.NETWORKS} - {"gpt_small"}))
def test_every_dense_layer_of_every_network_is_split(name, devices):
    network = build_network(name)
    splits = plan_splits(network, devices)
    assert [split.layer for split in splits] == [node.name for node in network.nodes if node.op == "dense"]
    expected = SPLIT.get(name, LAST_LAYER)
    if name == "trivial" and devices == 1:  # its first layer has one unit, which only one device can split
        expected = [("columns", False), *expected[1:]]
    assert kinds_of(splits) == expected
    pairs = plan_splits(network, devices, include_single=False)
    assert kinds_of(pairs) == [("columns", True), ("rows", True)] * PAIRS.get(name, 0)


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_an_attention_is_split_by_heads(devices):
    """Query, key and value read one tensor, whose gradient is summed up once."""
    network = build_network("gpt_small")
    splits = plan_splits(network, devices)
    block = [*(HEADS_APART if devices == 3 else ATTENTION), *FEED_FORWARD]
    assert kinds_of(splits) == [*block * 4, ("columns", False)]
    shared = {split.shared for split in splits[:4]}
    assert shared == ({None} if devices == 3 else {"block1_norm1"})


def test_dropout_and_relu_are_between_the_layers_of_a_pair():
    net = build_network("cifar10_cnn")
    first, second = plan_splits(net, 2, include_single=False)
    by_name = {node.name: node for node in net.nodes}
    assert [by_name[name].op for name in first.between] == ["relu", "dropout"]
    assert second.between == () and (first.layer, second.layer) == ("dense1", "dense2")


def chain(widths, between="relu"):
    """Return a chain of dense layers; the first width is that of the input."""
    net = Network("chain", (widths[0],))
    x = net.input
    for number, width in enumerate(widths[1:]):
        x = net.dense(x if number == 0 else getattr(net, between)(x), f"dense{number}", width)
    return net


def test_layers_that_are_not_split_or_not_paired():
    """3 devices cannot share 2 outputs, but they can share 5 inputs: 2, 2 and 1."""
    net = Network("branches", (8,))
    first = net.relu(net.dense(net.input, "first", 8))
    net.concat(net.dense(first, "second", 8), first)
    assert [split.paired for split in plan_splits(net, 2)] == [False, False]
    assert plan_splits(net, 2, include_single=False) == []
    net = Network("attention", (8,))
    x = net.embedding(net.input, "table", 5, 16)
    layers = [net.dense(x, name, 16) for name in ("query", "key", "value")]
    net.add(net.dense(net.attention(*layers, "attention", 4), "project", 16), x)
    assert [split.shared for split in plan_splits(net, 2)] == [None] * 4
    assert [(split.layer, split.by) for split in plan_splits(chain([5, 2]), 3)] == [("dense0", "rows")]
    assert plan_splits(chain([2, 2]), 3) == []
    assert [split.layer for split in plan_splits(chain([2, 2, 9]), 3)] == ["dense1"]


class Head(nn.Linear):
    """Its weights may be read without a call, as those of a MultiheadAttention's last layer are."""


class Attention(nn.Module):
    def __init__(self, plan, heads=4):
        super().__init__()
        self.q, self.norm, self.o = nn.Linear(8, 8), nn.LayerNorm(2), nn.Linear(8, 8)
        self.config, self.tp_plan = SimpleNamespace(num_attention_heads=heads), plan


def tie(*layers):
    for layer in layers[1:]:
        layer.weight = layers[0].weight
    return nn.ModuleList(layers)


GATHERED, COLUMNS, ROWS = "R from columns", "S(-1) from columns", "R from rows"
STYLES = {"ColwiseParallel": "columns", "RowwiseParallel": "rows"}
PLAN = {"*.q": "colwise", "*.o": "rowwise", "embed": "embedding_rowwise"}


def attentions(plan, heads=4):
    net = nn.ModuleList([Attention(None, heads)])
    net.config, net._tp_plan = SimpleNamespace(num_attention_heads=heads), plan
    return net


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)), {"0": COLUMNS, "3": ROWS}),
        (nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2)), {"0": GATHERED, "2": GATHERED}),
        (nn.Sequential(nn.Linear(3, 8), nn.Softmax(-1), nn.Linear(8, 2)), {"0": GATHERED, "2": GATHERED}),
        (nn.ModuleList([nn.Linear(3, 8), nn.Linear(8, 2)]), {"0": GATHERED, "1": GATHERED}),
        (nn.TransformerEncoderLayer(8, 2, 12), {"linear1": COLUMNS, "linear2": ROWS}),
        (nn.TransformerEncoderLayer(8, 2, 12, activation=torch.sin), {"linear1": GATHERED, "linear2": GATHERED}),
        (tie(nn.Embedding(4, 8), nn.Linear(8, 4)), {}),
        (nn.ModuleList([Head(8, 8), nn.Linear(8, 1), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))]), {}),
        (attentions(PLAN), {"0.q": COLUMNS, "0.o": ROWS}),
        (attentions(PLAN, heads=3), {"0.q": GATHERED, "0.o": GATHERED}),
        (attentions({**PLAN, "*.norm": "replicated_with_grad_allreduce"}), {"0.q": GATHERED, "0.o": GATHERED}),
        (nn.ModuleList([Attention({"o": "colwise_rep", "q": "colwise_rep"})]), {"0.q": GATHERED, "0.o": GATHERED}),
    ],
)  # fmt: skip
def test_layers_of_a_users_module_are_split_so_that_any_code_between_them_is_right(module, expected):
    """Outputs are gathered unless the next layer reads them as they are: in a Sequential, in PyTorch's own layers, and
    where the module's plan says so, if the devices can share all of it."""
    styles = plan_styles(module, 2, include_single=True)
    seen = {name: f"{style.output_layouts[0]} from {STYLES[type(style).__name__]}" for name, style in styles.items()}
    assert seen == expected
    pairs = plan_styles(module, 2, include_single=False)
    assert pairs.keys() == {name for name, kind in expected.items() if kind != GATHERED}


@given(st.integers(1, 500), st.integers(1, 16))
def test_shares_are_those_of_torch_chunk(width, devices):
    assert can_share(width, devices) == (len(torch.empty(width).chunk(devices)) == devices)
