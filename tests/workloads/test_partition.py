"""Stages and micro-batches: branches stay together, and the most expensive stage is as cheap as it can be."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.core.spec import Config, DatasetSpec, RankPlacement, RunSpec
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from scalebench.workloads.partition import (
    BatchSize,
    NetworkStage,
    default_micro_batches,
    epoch_batch_sizes,
    find_cuts,
    indivisible_reason,
    max_stages,
    node_parameter_bytes,
    node_training_flops,
    split_into_stages,
)
from scalebench.workloads.source import Source

CONF = Path(__file__).parents[2] / "conf/model"
BLOCKS = ("dense", "relu", "residual", "branches", "dead_end")


@functools.cache
def load_model(name):
    model = config_files.read_composed("model", CONF / f"{name}.yaml")
    return networks.build_by_name(name, model["input_shape"], model["outputs"], model.get("options"))


def build_blocks(blocks):
    """Build a network of dense layers of one width, some of which are read past their successors."""
    net = Network("net", (4,))
    x = net.input
    for number, block in enumerate(blocks):
        if block == "relu":
            x = net.relu(x)
        elif block == "residual":
            x = net.add(x, net.relu(net.dense(x, f"d{number}", 4)))
        elif block == "branches":
            x = net.add(net.dense(x, f"a{number}", 4), net.dense(x, f"b{number}", 4), net.relu(x))
        else:
            if block == "dead_end":
                net.relu(x)  # not read by any node
            x = net.dense(x, f"d{number}", 4)
    return net


def values_read_behind(net, position):
    """Return the values made up to this position that later nodes read."""
    made = {node.name for node in net.nodes[: position + 1]}
    return made & {name for node in net.nodes[position + 1 :] for name in node.inputs}


def has_weights(stage):
    return any(array.trainable for node in stage.nodes for array in node.arrays)


def check(net, stages):
    assert [node for stage in stages for node in stage.nodes] == net.nodes[1:]
    assert [stage.index for stage in stages] == list(range(len(stages)))
    assert stages[0].source == net.input
    for before, after in itertools.pairwise(stages):
        assert after.source == before.output
        assert values_read_behind(net, net.nodes.index(before.output)) == {before.output.name}
    assert all(has_weights(stage) for stage in stages)


def most_expensive(net, stages, costs):
    cost = dict(zip((node.name for node in net.nodes), costs, strict=True))
    return max(sum(cost[node.name] for node in stage.nodes) for stage in stages)


@given(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=8))
def test_a_cut_is_where_only_one_value_is_passed_on(blocks):
    net = build_blocks(blocks)
    inner = range(1, len(net.nodes) - 1)
    assert find_cuts(net) == [i for i in inner if values_read_behind(net, i) == {net.nodes[i].name}]


@given(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=7), st.integers(1, 4), st.data())
def test_the_most_expensive_stage_is_as_cheap_as_possible(blocks, count, data):
    net = build_blocks([*blocks, "dense"])
    costs = data.draw(st.lists(st.integers(0, 9).map(float), min_size=len(net.nodes), max_size=len(net.nodes)))
    costs[0] = 0.0
    ways = []
    for inner in itertools.combinations(find_cuts(net), count - 1):
        ends = [0, *inner, len(net.nodes) - 1]
        pairs = enumerate(itertools.pairwise(ends))
        stages = [NetworkStage(i, tuple(net.nodes[a + 1 : b + 1]), net.nodes[a]) for i, (a, b) in pairs]
        if all(map(has_weights, stages)):
            ways.append(stages)
    if not ways:
        with pytest.raises(InputError, match=f"at most {max_stages(net)} stage"):
            split_into_stages(net, count, costs)
        return
    best = split_into_stages(net, count, costs)
    check(net, best)
    assert most_expensive(net, best, costs) == min(most_expensive(net, way, costs) for way in ways)
    assert best == split_into_stages(net, count, costs)


DEEP = ("resnet44_cifar10", "resnet56_cifar10", "resnet110_cifar10", "resnet101", "resnet152", "densenet100_k12")
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in networks.NETWORKS]


@pytest.mark.parametrize("name", EVERY)
def test_every_built_in_network_can_be_cut(name):
    net = load_model(name)
    most = max_stages(net)
    assert most >= (3 if name == "trivial" else 4)
    for count in {1, 2, min(4, most), most}:
        for costs in (node_training_flops(net), node_parameter_bytes(net)):
            stages = split_into_stages(net, count, costs)
            check(net, stages)
            made = [stage.network(f"{name}.{stage.index}") for stage in stages]
            assert [array for one in made for array in one.arrays] == net.arrays
            assert sum(one.training_flops for one in made) == net.training_flops == sum(node_training_flops(net))
            assert sum(one.parameters for one in made) == net.parameters == sum(node_parameter_bytes(net)) / 4


def test_equally_good_cuts_send_the_least_data():
    net = Network("net", (8, 8, 1))
    x = net.max_pool(net.relu(net.conv(net.input, "one", 4, 3)), 2, strides=2)
    x = net.conv(net.zero_pad(net.relu(x), 1), "two", 4, 3, padding="valid")
    net.dense(net.flatten(x), "three", 2)
    costs = [float(node.op == "conv") for node in net.nodes]
    first, second = split_into_stages(net, 2, costs)
    assert [node.op for node in first.nodes] == ["conv", "relu", "max_pool", "relu"], "the latest of the smallest"
    assert [node.op for node in second.nodes] == ["zero_pad", "conv", "flatten", "dense"]


def test_too_many_stages_are_an_input_error():
    mlp = load_model("mlp")
    message = r"^model mlp can be cut into at most 5 stages, the strategy needs 8: lower gpus$"
    with pytest.raises(InputError, match=message):
        split_into_stages(mlp, 8, node_training_flops(mlp))
    with pytest.raises(InputError, match="the strategy needs 0: use at least 1"):
        split_into_stages(mlp, 0, node_training_flops(mlp))
    with pytest.raises(InputError, match="model net can be cut into at most 1 stage, the strategy needs 2"):
        split_into_stages(build_blocks(["residual"]), 2, node_training_flops(build_blocks(["residual"])))


def spec_of(samples, global_batch, gpus, feed="host"):
    config = Config(dataset=DatasetSpec(size=samples, validation_share=0.0, feed=feed))
    places = [RankPlacement(rank, rank, 0, [rank], [], 1) for rank in range(gpus)]
    return RunSpec(config, "cpu", gpus, 1, places, -(-global_batch // gpus), global_batch, "0" * 16)


@given(st.integers(4, 60), st.integers(4, 40), st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]), st.data())
def test_sizes_are_those_of_an_epoch(samples, global_batch, devices, data):
    gpus, replicas = devices
    replica = data.draw(st.integers(0, replicas - 1))
    rows = np.zeros(samples)
    source = Source(rows, rows, global_batch=global_batch, seed=1, replica=replica, replicas=replicas, devices=gpus)
    epoch = [BatchSize(batch.samples, batch.global_samples) for batch in source.epoch(0)]
    sizes = epoch_batch_sizes(spec_of(samples, global_batch, gpus), replica, replicas)
    assert sizes == [epoch[0], epoch[-1]]
    assert set(epoch) == set(sizes)


def test_batches_that_do_not_divide_are_named():
    """The fixed feed has no smaller last batch."""
    assert epoch_batch_sizes(spec_of(25, 10, 2), 0, 1) == [(10, 10), (5, 5)]
    assert epoch_batch_sizes(spec_of(25, 10, 2, "fixed"), 0, 1) == [(10, 10), (10, 10)]
    for last, micro_batches, words in (
        (8, 2, None), (8, 1, None), (5, 1, None), (5, 2, "the last batch of an epoch has 5 samples"), (8, 4, "a batch"),
    ):  # fmt: skip
        reason = indivisible_reason([BatchSize(10, 10), BatchSize(last, last)], micro_batches)
        assert reason is None if words is None else reason is not None and reason.startswith(words)
        assert reason is None or "change strategy.options.micro_batches" in reason


@pytest.mark.parametrize(("samples", "global_batch", "gpus", "replicas", "stages", "number"), [
    (4096, 1024, 2, 1, 2, 4),
    (225, 150, 2, 1, 2, 5),  # batches of 150 and 75
    (64, 16, 4, 1, 4, 8),
    (64, 16, 4, 2, 2, 4),
    (60, 20, 1, 1, 1, 2),
    (31, 31, 2, 1, 2, 31),  # sample by sample
    (630, 32, 2, 1, 2, 2),  # 32 and 22
    (41, 31, 2, 1, 2, 4),  # 31 and 10 have no divisor in common
    (30, 15, 4, 2, 2, 4),  # 8 and 7 neither
])  # fmt: skip
def test_the_default_divides_every_batch(samples, global_batch, gpus, replicas, stages, number):
    spec = spec_of(samples, global_batch, gpus)
    assert default_micro_batches(spec, replicas, stages) == number
    reasons = [indivisible_reason(epoch_batch_sizes(spec, replica, replicas), number) for replica in range(replicas)]
    assert all(reason is None for reason in reasons) == (samples not in (41, 30))
