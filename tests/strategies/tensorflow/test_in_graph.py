"""In-graph replication: placement, statistics of the single copy, and batches that cannot be sliced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.tensorflow.in_graph import InGraph, InGraphOptions
from scalebench.workloads.source import Source
from tests.strategies.tensorflow.single_update import Update, one_update

SMALL = ("model=resnet20_cifar10", "dataset=cifar10_synthetic", "dataset.size=40", "scaling=strong", "gpus=2")
PRESETS = ["multi_gpu_model", "kuza55_ps_cpu", "kuza55_ps_gpu", "avolkov1_ps_cpu", "avolkov1_ps_gpu"]
# Towers are on CPU:1, which is the first device, and CPU:0: (weights and sums, slices, merged outputs and losses).
PLACES = {
    "multi_gpu_model": ("CPU:0", {"CPU:0"}, "CPU:0"),
    "kuza55_ps_cpu": ("CPU:0", {"CPU:0", "CPU:1"}, "CPU:0"),
    "kuza55_ps_gpu": ("CPU:1", {"CPU:0", "CPU:1"}, "CPU:1"),
    "kuza55_ps_gpu strategy.options.merge_device=cpu": ("CPU:1", {"CPU:0", "CPU:1"}, "CPU:0"),
    "avolkov1_ps_gpu strategy.options.loss=tower": ("CPU:1", {"CPU:1"}, "CPU:1"),
}
FORWARD = {"Conv2D", "MatMul", "FusedBatchNormV3"}
BACKWARD = {"Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul", "FusedBatchNormGradV3"}


QUICK = ("multi_gpu_model",)
ALL = [which if which in QUICK else pytest.param(which, marks=pytest.mark.slow) for which in PLACES]


@pytest.fixture(scope="module", params=ALL)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Update]:
    """(which, its one update) of 5 or 6 samples; a batch of 5 is cut into 2 and 3."""
    batch = 6 if request.param.startswith("kuza55") else 5
    cache = tmp_path_factory.getbasetemp() / "in_graph_data"
    words = (*SMALL, f"train.global_batch={batch}", f"dataset.cache={cache}", "dataset.validation_share=0.1")
    return request.param, one_update(*words, *f"strategy={request.param}".split())


def strategy(name: str, *overrides: str) -> InGraph:
    """Made, and not set up, as that takes TensorFlow's devices for the whole process."""
    return InGraph(resolve(compose_config([f"strategy={name}", "gpus=2", *overrides])), 0)


def source(samples: int, global_batch: int, **settings: Any) -> Source:
    arrays = np.zeros((samples, 200, 3), np.float32), np.zeros((samples, 2), np.float32)
    return Source(*arrays, global_batch=global_batch, seed=0, replica=0, replicas=1, **settings)


@pytest.mark.slow
@pytest.mark.real
def test_each_tower_is_on_its_device_forward_and_backward(run: tuple[str, Update]) -> None:
    _, update = run
    for number, device in enumerate(["CPU:1", "CPU:0"]):
        for scope, types in ((f"^tower_{number}/", FORWARD), (f"^gradients/tower_{number}/", BACKWARD)):
            for type in types:
                assert update.devices(scope, type) == {device}, f"{type} under {scope}"


@pytest.mark.slow
@pytest.mark.real
def test_weights_slices_and_outputs_are_on_the_configured_devices(run: tuple[str, Update]) -> None:
    name, update = run
    parameter_device, slices, merged = PLACES[name]
    assert update.facts["weights_on"] == update.facts["slots_on"] == [parameter_device]
    assert update.devices("^sum_of_gradients/", "AddN") == {parameter_device}
    assert update.devices("^slice", "StridedSlice") == slices
    assert update.devices("^merge/", "Pack" if "loss=tower" in name else "ConcatV2") == {merged}


@pytest.mark.real
def test_moving_statistics_are_the_mean_over_the_towers(run: tuple[str, Update]) -> None:
    _, update = run
    assert max(update.facts["statistics_off_by"]) < 1e-6
    assert min(update.facts["statistics_moved_by"]) > 1e-5


@pytest.mark.real
def test_messages_are_the_gradients(run: tuple[str, Update]) -> None:
    name, update = run
    assert sum(update.facts["message_bytes"]) == 4 * 269_787  # and neither losses nor statistics
    assert update.facts["round_trip"] == [[PLACES[name][0]], ["CPU:0", "CPU:1"]]
    assert update.facts["compiled"] == []


def test_the_defaults_are_those_of_multi_gpu_model() -> None:
    assert strategy("multi_gpu_model").options == InGraphOptions()


@pytest.mark.parametrize("name", PRESETS)
def test_the_compiler_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=f"{name} .*train.compile=true"):
        strategy(name, "train.compile=true").setup()


@pytest.mark.parametrize("name", PRESETS)
def test_synchronization_cannot_be_switched_off(name: str) -> None:
    with pytest.raises(NotMeasured, match="one copy of the weights"):
        strategy(name).set_gradient_sync(False)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    """The study's error at 6 GPUs: 32 samples, of which the towers of kuza55 took 30."""
    with pytest.raises(Unsupported, match="a global batch of 32 samples does not divide by 6 devices"):
        strategy("kuza55_ps_gpu", "gpus=6", "scaling=strong", "train.global_batch=32").setup()


def test_a_last_batch_that_does_not_divide_is_refused() -> None:
    """240 = 7 * 30 + 30 divides, 241 leaves a batch of 1."""
    kuza55 = strategy("kuza55_ps_cpu", "scaling=strong", "train.global_batch=30")
    with pytest.raises(Unsupported, match="the last batch of an epoch of 1 samples does not divide by 2 devices"):
        kuza55.feed(source(241, 30))
    kuza55.devices = ["/CPU:0"]
    kuza55.join()
    for full in (source(240, 30), source(241, 30, feed="fixed")):
        kuza55.feed(full)


def test_nccl_needs_its_backend_and_gpus() -> None:
    words = ("strategy.options.reduction=nccl", "hardware=cpu")
    with pytest.raises(InputError, match="wants strategy"):
        strategy("avolkov1_ps_gpu", *words)
    with pytest.raises(Unsupported, match="needs GPUs"):
        strategy("avolkov1_ps_gpu", *words, "strategy.backend=nccl").setup()
