"""FLOPs and parameters against published counts and counts by hand, and conf/model against the networks; and their
nodes, which stay what they were."""

import dataclasses
import math
import zlib
from pathlib import Path

import pytest

from scalebench.core import config_files
from scalebench.core.json_files import build_record
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks

IMAGENET, CIFAR = (224, 224, 3), (32, 32, 3)


# v1.5 does the first 1x1 convolution of three stacks at four times as many positions as v1.
V1_5_MORE = sum(3 * size**2 * channels * channels // 2 for size, channels in [(28, 256), (14, 512), (7, 1024)]) / 1e9
# torchvision's AlexNet has 256 instead of 384 filters in the fourth convolution, which the fifth one sees too.
ALEXNET_MORE = 13 * 13 * 9 * (384 * 128 + 128 * 256) / 1e9

# Network -> (GMACs of torchvision: `_ops` of its weights, of which half of the last digit is the tolerance; what ours
# has more).
TORCHVISION = {
    "inception_v3": (5.713, 0), "resnet50_v1_5": (4.089, 0), "alexnet": (0.714, ALEXNET_MORE),
    "vgg11": (7.609, 0), "vgg16": (15.47, 0), "vgg19": (19.632, 0),
    "resnet50": (4.089, -V1_5_MORE), "resnet101": (7.801, -V1_5_MORE), "resnet152": (11.514, -V1_5_MORE),
}  # fmt: skip
# chenyaofo/pytorch-cifar-models, README: MAdds, which have normalisation and shortcuts too; resnet110: its series
# continued. Hence 1 %.
CIFAR_MODELS = {
    "resnet20_cifar10": 0.04081, "resnet32_cifar10": 0.06912, "resnet44_cifar10": 0.09744, "resnet56_cifar10": 0.12575,
    "resnet110_cifar10": 0.25316,
}  # fmt: skip
# Counted from tensorflow/benchmarks, models/densenet_model.py, with the count of variables that it logged.
DENSENETS = {"densenet40_k12": 0.15156, "densenet100_k12": 0.95989}


@pytest.mark.parametrize("name", [*TORCHVISION, *CIFAR_MODELS, *DENSENETS])
def test_published_operations(name):
    shape = CIFAR if name not in TORCHVISION else (299, 299, 3) if name == "inception_v3" else IMAGENET
    outputs = 1000 if name in TORCHVISION else 11 if name in DENSENETS else 10
    gmacs = networks.build_by_name(name, shape, outputs).forward_flops / 2e9
    if name in TORCHVISION:
        published, more = TORCHVISION[name]
        assert gmacs - more == pytest.approx(published, abs=5.1e-4)
    elif name in CIFAR_MODELS:
        assert gmacs == pytest.approx(CIFAR_MODELS[name], rel=0.01)
    else:
        assert gmacs == pytest.approx(DENSENETS[name], abs=5.1e-6)


CONF = Path(__file__).parents[3] / "conf" / "model"


def load(name):
    tree = config_files.read_composed("model", CONF / f"{name}.yaml")
    return {key: value for key, value in tree.items() if key != "defaults"}


def net(name):
    return networks.build_network(build_record(ModelSpec, load(name)))


def test_every_network_has_a_yaml():
    assert {path.stem for path in CONF.glob("*.yaml")} == {*networks.NETWORKS, "custom", "hf", "timm", "torchvision"}


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_parameter_count_of_the_yaml(name):
    model = build_record(ModelSpec, load(name))
    assert model.name == name and model.sources
    assert model.params in (net(name).parameters, None)
    assert (model.params is None) == (name == "synthetic")
    assert networks.resolve_input_shape(model) == model.input_shape
    assert model.options == networks.option_defaults(name)


# Arrays of all kinds: variables as tf_cnn_benchmarks printed them, which are the moving statistics of batch
# normalisation too, and the number of the step: rossumai/keras-multi-gpu, blog/docs/measurements.md, table of CIFAR10.
TF_CNN_BENCHMARKS = {
    "alexnet_cifar10": 1_756_620, "resnet20_cifar10": 271_164, "resnet32_cifar10": 466_492, "resnet44_cifar10": 661_820,
    "resnet56_cifar10": 857_148, "resnet110_cifar10": 1_736_124, "densenet40_k12": 364_772,
    "densenet100_k12": 2_259_652,
}  # fmt: skip
TRAINED = {
    "inception_v3": 23_817_352,  # rossumai/keras-multi-gpu, benchmark_inception3_resnet50.py
    "resnet50_v1_5": 25_557_032,  # torchvision, ResNet50_Weights: num_params
    # torchvision's has 61,100,840 (61.10 M in sovrasov/flops-counter.pytorch), and fewer filters: see ALEXNET_MORE
    "alexnet": 61_100_840 + 128 * (9 * 384 + 1) + 256 * 9 * 128,
    "vgg11": 132_863_336,  # torchvision, VGG11_Weights: num_params
    # HewlettPackard/dlcookbook-dlbs, docs: the table of its models, which are those of tf_cnn_benchmarks
    "googlenet": 6_998_552,
    "overfeat": 145_920_872,
    "trivial": 227 * 227 * 3 + 1 + 2 * 4096 + 4097 * 1000,  # by hand
    "lstm_small": 2 * (10_000 * 200 + 4 * 200 * 401) + 10_000,  # by hand: the paper has none; larger ones below
    "materials_cnn": 153_441,  # the thesis
    "cifar10_cnn": 1_250_858,  # Model.count_params() of Keras' example; "1.25M" in the study
    "mlp": 41_157_101,  # @kuza55's article
}


@pytest.mark.parametrize("name", {**TF_CNN_BENCHMARKS, **TRAINED})
def test_published_parameters(name):
    network = net(name)
    numbers = sum(math.prod(array.shape) for array in network.arrays)
    assert TF_CNN_BENCHMARKS.get(name, numbers + 1) == numbers + 1
    assert TRAINED.get(name, network.parameters) == network.parameters


def test_published_parameters_of_other_sizes():
    """McMahan et al. 2017 (arXiv:1602.05629), section 3, print the count of LeNet on MNIST; Merity et al. 2016
    (arXiv:1609.07843), table 1, those of Zaremba et al. 2014, medium and large."""
    assert networks.build_by_name("lenet", (28, 28, 1), 10).parameters == 1_663_370
    for width, millions in ((650, 20), (1500, 66)):
        larger = networks.build_by_name("lstm_small", (35,), 10_000, {"width": width, "sequence_length": 35})
        assert round(larger.parameters / 1e6) == millions


# Digests of all nodes for these samples and five outputs. What tells a network from its namesakes is in them: strides,
# padding, shortcuts, biases, settings of the normalization, rates of dropout, initializers.
SHAPES = {
    "materials_cnn": (200, 3), "mlp": (80,), "synthetic": (37632, 1), "gpt_small": (64,), "lstm_small": (20,),
}  # fmt: skip
DIGESTS = {
    "materials_cnn": "df4d410a", "inception_v3": "4e6bd10b", "resnet50": "051c08df", "resnet50_v1_5": "dac3456f",
    "resnet50_v2": "2326da21", "resnet101": "da05f638", "resnet152": "97a57ef4", "vgg11": "a1e966d7",
    "vgg16": "650d4d22", "vgg19": "7298e03f", "alexnet": "5720d5d5", "googlenet": "ed070ec3", "lenet": "59b57d71",
    "overfeat": "0b79b958", "trivial": "098c3410", "cifar10_cnn": "28b87532", "alexnet_cifar10": "3bbee227",
    "resnet20_cifar10": "d6034f06", "resnet32_cifar10": "2699fbb3", "resnet44_cifar10": "eaeefc92",
    "resnet56_cifar10": "0eee6bfe", "resnet110_cifar10": "cf70c118", "densenet40_k12": "213cf831",
    "densenet100_k12": "44d782eb", "mlp": "59dcfa49", "synthetic": "bcf06b84", "gpt_small": "5eb119cb",
    "lstm_small": "b12214c9",
}  # fmt: skip


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_a_network_stays_what_it_was(name):
    net = networks.build_by_name(name, SHAPES.get(name, (96, 96, 3)), 5)
    assert f"{zlib.crc32(repr([dataclasses.astuple(node) for node in net.nodes]).encode()):08x}" == DIGESTS[name]
