"""FLOPs and parameters against published counts and counts by hand, and conf/model against the networks."""

import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from scalebench.core.json_files import from_dict
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.network import Network

IMAGENET, CIFAR = (224, 224, 3), (32, 32, 3)


def gmacs(name: str, shape: tuple[int, ...], outputs: int) -> float:
    return networks.build_by_name(name, shape, outputs).forward_flops / 2e9


# GMACs. torchvision: `_ops` of its weights; half of the last digit is the tolerance.
@pytest.mark.parametrize(
    ("name", "shape", "published"),
    [("inception_v3", (299, 299, 3), 5.713), ("resnet50_v1_5", IMAGENET, 4.089), ("vgg16", IMAGENET, 15.47)],
)
def test_torchvisions_counts(name: str, shape: tuple[int, ...], published: float) -> None:
    assert gmacs(name, shape, 1000) == pytest.approx(published, abs=5.1e-4)


@pytest.mark.parametrize(("name", "published"), [("resnet50", 4.089), ("resnet101", 7.801), ("resnet152", 11.514)])
def test_v1_against_torchvisions_v1_5(name: str, published: float) -> None:
    """v1.5 does the first 1x1 convolution of three stacks at four times as many positions."""
    more = sum(3 * size**2 * channels * channels // 2 for size, channels in [(28, 256), (14, 512), (7, 1024)])
    assert gmacs(name, IMAGENET, 1000) + more / 1e9 == pytest.approx(published, abs=5.1e-4)


def test_alexnet_against_torchvisions() -> None:
    """torchvision has 256 instead of 384 filters in the fourth convolution, which the fifth one sees too: 0.714."""
    more = 13 * 13 * 9 * (384 * 128 + 128 * 256)
    assert gmacs("alexnet", IMAGENET, 1000) - more / 1e9 == pytest.approx(0.714, abs=5.1e-4)


# chenyaofo/pytorch-cifar-models, README: MAdds, which have normalisation and shortcuts too; resnet110: its series
# continued. Hence 1 %.
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet20_cifar10", 0.04081),
        ("resnet32_cifar10", 0.06912),
        ("resnet44_cifar10", 0.09744),
        ("resnet56_cifar10", 0.12575),
        ("resnet110_cifar10", 0.25316),
    ],
)
def test_resnets_for_cifar(name: str, published: float) -> None:
    assert gmacs(name, CIFAR, 10) == pytest.approx(published, rel=0.01)


# Counted from tensorflow/benchmarks, models/densenet_model.py, with the count of variables that it logged.
@pytest.mark.parametrize(("name", "derived"), [("densenet40_k12", 0.15156), ("densenet100_k12", 0.95989)])
def test_densenets(name: str, derived: float) -> None:
    assert gmacs(name, CIFAR, 11) == pytest.approx(derived, abs=5.1e-6)


def test_counts_by_hand() -> None:
    materials = networks.build_by_name("materials_cnn", (200, 3), 2)
    assert materials.forward_flops == 2 * (200 * 7 * 3 * 16 + 100 * 7 * 16 * 24 + 1200 * 125 + 125 * 2)
    assert materials.training_flops == 2_917_500
    mlp = networks.build_by_name("mlp", (8000,), 1)
    assert mlp.forward_flops == 2 * (8000 * 4000 + 4000 * 2000 + 2000 * 500 + 500 * 300 + 300)
    alexnet = networks.build_by_name("alexnet_cifar10", CIFAR, 11)
    assert alexnet.forward_flops == 2 * (1024 * 25 * 3 * 64 + 256 * 25 * 64 * 64 + 4096 * 384 + 384 * 192 + 192 * 11)
    cnn = networks.build_by_name("cifar10_cnn", CIFAR, 10)
    convolutions = 1024 * 9 * 3 * 32 + 900 * 9 * 32 * 32 + 225 * 9 * 32 * 64 + 169 * 9 * 64 * 64
    assert cnn.forward_flops == 2 * (convolutions + 2304 * 512 + 512 * 10)


CONF = Path(__file__).parents[3] / "conf" / "model"


def load(name: str) -> dict[str, Any]:
    tree = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items() if key != "defaults"}


def net(name: str) -> Network:
    return networks.build_network(from_dict(ModelSpec, load(name)))


def all_numbers(network: Network) -> int:
    return sum(math.prod(array.shape) for array in network.arrays)


def test_every_network_has_a_yaml() -> None:
    assert {path.stem for path in CONF.glob("*.yaml")} == {*networks.NETWORKS, "custom"}


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_parameter_count_of_the_yaml(name: str) -> None:
    model = from_dict(ModelSpec, load(name))
    assert model.name == name and model.sources
    assert model.params in (net(name).parameters, None)
    assert (model.params is None) == (name == "synthetic")
    assert networks.resolve_input_shape(model) == model.input_shape
    assert model.options == networks.option_defaults(name)


# Variables as tf_cnn_benchmarks printed them: rossumai/keras-multi-gpu, blog/docs/measurements.md, table of CIFAR10.
TF_CNN_BENCHMARKS = {
    "alexnet_cifar10": 1_756_620,
    "resnet20_cifar10": 271_164,
    "resnet32_cifar10": 466_492,
    "resnet44_cifar10": 661_820,
    "resnet56_cifar10": 857_148,
    "resnet110_cifar10": 1_736_124,
    "densenet40_k12": 364_772,
    "densenet100_k12": 2_259_652,
}


@pytest.mark.parametrize(("name", "variables"), TF_CNN_BENCHMARKS.items())
def test_parameter_count_of_tf_cnn_benchmarks(name: str, variables: int) -> None:
    """It counts the moving statistics of batch normalisation, and the number of the step."""
    assert all_numbers(net(name)) + 1 == variables


# Model.count_params() of keras.applications (Keras 3.15), which counts the moving statistics; InceptionV3's is also in
# rossumai/keras-multi-gpu, benchmark_inception3_resnet50.py.
KERAS_APPLICATIONS = {
    "inception_v3": 23_851_784,
    "resnet50": 25_636_712,
    "resnet50_v2": 25_613_800,
    "resnet101": 44_707_176,
    "resnet152": 60_419_944,
    "vgg16": 138_357_544,
}


@pytest.mark.parametrize(("name", "parameters"), KERAS_APPLICATIONS.items())
def test_parameter_count_of_keras_applications(name: str, parameters: int) -> None:
    assert all_numbers(net(name)) == parameters


def test_parameter_count_of_inception_that_is_trained() -> None:
    """rossumai/keras-multi-gpu, benchmark_inception3_resnet50.py: trainable and non-trainable parameters."""
    inception = net("inception_v3")
    assert (inception.parameters, all_numbers(inception) - inception.parameters) == (23_817_352, 34_432)


def test_parameter_count_of_torchvision() -> None:
    """torchvision, ResNet50_Weights: num_params."""
    assert net("resnet50_v1_5").parameters == 25_557_032


def test_parameter_count_of_alexnet() -> None:
    """torchvision's has 61,100,840 (61.10 M in sovrasov/flops-counter.pytorch), and 256 instead of 384 filters in the
    fourth convolution."""
    fourth, fifth = 128 * (9 * 384 + 1), 256 * 9 * 128
    assert net("alexnet").parameters == 61_100_840 + fourth + fifth


def test_parameter_count_of_the_other_examples() -> None:
    assert net("materials_cnn").parameters == 153_441  # the thesis
    assert net("cifar10_cnn").parameters == 1_250_858  # Model.count_params() of Keras' example; "1.25M" in the study
    assert net("mlp").parameters == 41_157_101  # @kuza55's article
