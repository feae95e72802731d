"""Numbers of parameters against published ones, and conf/model against the networks."""

import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from scalebench.records import from_dict
from scalebench.spec import ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.network import Network

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
