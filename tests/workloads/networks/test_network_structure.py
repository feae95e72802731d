"""What tells the networks from their namesakes: strides, shortcuts, biases, settings of the normalisation."""

import pytest

from scalebench.workloads import networks


def build(name, size, outputs=10):
    return networks.build_by_name(name, (size, size, 3), outputs)


def node(net, name):
    return next(node for node in net.nodes if node.name == name)


def strided(net):
    return [node.name for node in net.nodes if node.op == "conv" and node.settings["strides"] > 1]


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_every_node_leads_to_the_output(name):
    shapes = {
        "materials_cnn": (200, 3),
        "mlp": (8000,),
        "synthetic": (37632, 1),
        "gpt_small": (64,),
        "lstm_small": (20,),
    }
    net = networks.build_by_name(name, shapes.get(name, (96, 96, 3)), 5)
    read = {source for node in net.nodes for source in node.inputs}
    assert {node.name for node in net.nodes} - read == {net.output.name}
    assert net.output.op == "dense" and net.output.shape[-1:] == (5,)
    assert len(net.output.shape) == 1 + (name in ("gpt_small", "lstm_small"))


def test_where_the_stride_of_a_resnet_is():
    stacks = (3, 4, 5)
    first = [f"conv{n}_block1_{part}_conv" for n in stacks for part in (0, 1)]
    assert strided(build("resnet50", 64)) == ["conv1_conv", *first]
    middle = [f"conv{n}_block1_{part}_conv" for n in stacks for part in (0, 2)]
    assert strided(build("resnet50_v1_5", 64)) == ["conv1_conv", *middle]
    last = ["conv2_block3_2_conv", "conv3_block4_2_conv", "conv4_block6_2_conv"]
    assert strided(build("resnet50_v2", 64)) == ["conv1_conv", *last]


def test_settings_of_the_normalisation():
    settings = {
        "inception_v3": {"epsilon": 1e-3, "momentum": 0.99, "scale": False},
        "resnet50": {"epsilon": 1.001e-5, "momentum": 0.99, "scale": True},
        "resnet50_v2": {"epsilon": 1.001e-5, "momentum": 0.99, "scale": True},
        "resnet50_v1_5": {"epsilon": 1e-5, "momentum": 0.9, "scale": True},
        "resnet20_cifar10": {"epsilon": 1e-5, "momentum": 0.9, "scale": True},
        "densenet40_k12": {"epsilon": 1e-5, "momentum": 0.9, "scale": True},
    }
    for name, expected in settings.items():
        actual = [node.settings for node in build(name, 96).nodes if node.op == "batch_norm"]
        assert actual and all(one == expected for one in actual), name


def test_padding_can_be_the_maximum_in_the_first_pool_of_v2_only():
    for name, before, pads in (("resnet50", "relu", 1), ("resnet50_v2", "zero_pad", 0)):
        net = build(name, 64)
        pool = next(node for node in net.nodes if node.op == "max_pool")
        assert node(net, pool.inputs[0]).op == before and pool.settings["pads"] == ((pads, pads),) * 2


def test_shortcuts_of_resnets_for_cifar_have_no_parameters():
    net = build("resnet20_cifar10", 32)
    assert [(n.shape, n.settings["pads"]) for n in net.nodes if n.op == "pad_channels"] == [
        ((16, 16, 32), (8, 8)),
        ((8, 8, 64), (16, 16)),
    ]
    pools = [n.settings for n in net.nodes if n.op == "avg_pool"]
    assert pools == [{"window": (1, 1), "strides": 2, "pads": ((0, 0), (0, 0))}] * 2
    assert strided(net) == ["conv7", "conv13"] and node(net, "conv7").settings["pads"] == ((0, 1), (0, 1))
    assert node(net, "batchnorm1").inputs == ("conv1",)
    assert node(net, "conv1").inputs == ("batchnorm0",)  # no relu between, as in the original


def test_alexnets():
    net = build("alexnet", 224)
    assert node(net, "conv0").shape == (55, 55, 64)
    assert [n.shape for n in net.nodes if n.op == "max_pool"] == [(27, 27, 64), (13, 13, 192), (6, 6, 256)]
    assert [n.settings["rate"] for n in net.nodes if n.op == "dropout"] == [0.5, 0.5]
    small = build("alexnet_cifar10", 32)
    assert [n.op for n in small.nodes][1:8] == ["conv", "relu", "max_pool", "lrn", "conv", "relu", "lrn"]
    assert [n.shape for n in small.nodes if n.op == "max_pool"] == [(16, 16, 64), (8, 8, 64)]
    lrn = {"radius": 4, "bias": 1.0, "alpha": 0.001 / 9, "beta": 0.75}
    assert [n.settings for n in small.nodes if n.op == "lrn"] == [lrn, lrn]


def test_the_example_for_cifar_drops_out_three_times():
    net = build("cifar10_cnn", 32)
    assert [n.settings["rate"] for n in net.nodes if n.op == "dropout"] == [0.25, 0.25, 0.5]
    assert [n.shape[:2] for n in net.nodes if n.op == "conv"] == [(32, 32), (30, 30), (15, 15), (13, 13)]
