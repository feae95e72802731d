"""The table of networks: what `build` refuses, and in which words."""

from collections.abc import Callable
from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.weights import initial_weights


def test_materials_cnn_is_that_of_the_thesis() -> None:
    net = networks.build_by_name("materials_cnn", (200, 3), 2)
    assert {array.name: array.shape for array in net.arrays} == {
        "conv1/kernel": (7, 3, 16),
        "conv1/bias": (16,),
        "conv2/kernel": (7, 16, 24),
        "conv2/bias": (24,),
        "dense1/kernel": (1200, 125),
        "dense1/bias": (125,),
        "dense2/kernel": (125, 2),
        "dense2/bias": (2,),
    }
    weights = initial_weights(((a.name, a.shape, a.init) for a in net.arrays), seed=0)
    assert sum(array.size for array in weights.values()) == net.parameters == 153_441


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: networks.build_by_name("resnet5", (224, 224, 3), 10),
            r"^no model 'resnet5'; did you mean 'resnet50'\?$",
        ),
        (
            lambda: networks.build_by_name("resnet50", (200, 3), 10),
            r"^model=resnet50 takes inputs of shape \(height, width, channels\), not model.input_shape=\[200, 3\]$",
        ),
        (lambda: networks.build_by_name("mlp", (32, 32, 3), 1), r"^model=mlp takes inputs of shape \(numbers\), not"),
        (lambda: networks.build_by_name("materials_cnn", (), 2), r"^model=materials_cnn takes inputs .*, not .*=\[\]$"),
        (lambda: networks.build_by_name("mlp", (0,), 1), r"^model=mlp takes inputs .*, not .*=\[0\]$"),
        (lambda: networks.build_by_name("mlp", (8,), 0), r"^model.outputs=0 should be at least 1$"),
        (
            lambda: networks.build_by_name("mlp", (8,), 1, {"depth": 3}),
            r"^no option of model 'mlp' 'depth'; known: none$",
        ),
        (
            lambda: networks.build_by_name("synthetic", (8, 1), 1, {"flop": 3}),
            r"^no option of model 'synthetic' 'flop'; did you mean 'flops'\?$",
        ),
        (
            lambda: networks.build_by_name("synthetic", (8, 1), 1, {"sample_bytes": 32.0}),
            r"^model.options.sample_bytes=32.0 should be int, as its default 150528$",
        ),
        (
            lambda: networks.build_by_name("synthetic", (8, 1), 1, {"flops": "many"}),
            r"^model.options.flops='many' should be float",
        ),
        (
            lambda: networks.build_by_name("synthetic", (8, 1), 1, {"flops": True}),
            r"^model.options.flops=True should be float",
        ),
    ],
)
def test_what_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize(("name", "least"), [("inception_v3", 75), ("alexnet", 63), ("vgg16", 32), ("cifar10_cnn", 10)])
def test_pictures_below_the_least_size_are_refused(name: str, least: int) -> None:
    networks.build_by_name(name, (least, least, 3), 10)
    with pytest.raises(InputError, match=rf"^inputs of {least - 1}x{least - 1} are too small for {name}: "):
        networks.build_by_name(name, (least - 1, least - 1, 3), 10)


@pytest.mark.parametrize("name", ["inception_v3", "alexnet"])
def test_networks_for_imagenet_that_refuse_pictures_of_cifar(name: str) -> None:
    with pytest.raises(InputError, match=rf"^inputs of 32x32 are too small for {name}: .*; raise dataset.image_size"):
        networks.build_by_name(name, (32, 32, 3), 10)


def test_input_shape_follows_from_the_model() -> None:
    assert networks.resolve_input_shape(ModelSpec(name="resnet50", input_shape=[64, 64, 3])) == [64, 64, 3]
    model = ModelSpec(name="synthetic", input_shape=[1, 1], options={"sample_bytes": 4000, "flops": 1e9})
    assert networks.resolve_input_shape(model) == [1000, 1]
    assert networks.resolve_input_shape(ModelSpec(name="synthetic")) == [37632, 1]
    with pytest.raises(InputError, match="did you mean 'sample_bytes'"):
        networks.resolve_input_shape(ModelSpec(name="synthetic", options={"sample_byte": 4000}))
    with pytest.raises(InputError, match="no model 'alexnett'"):
        networks.resolve_input_shape(ModelSpec(name="alexnett"))
