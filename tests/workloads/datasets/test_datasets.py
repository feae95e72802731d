"""Datasets by name: files of the user, what open shapes become, and how many samples are evaluated at once."""

import dataclasses

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import Config, DatasetSpec, ModelSpec, StopSpec, TrainSpec
from scalebench.workloads import datasets, user_code
from scalebench.workloads.datasets import cache
from tests.builders.configs import image_config
from tests.builders.runs import simulated_spec

CURVES = ModelSpec("materials_cnn", input_shape=[200, 3], target_shape=[2], outputs=2)


def config(name, model, **dataset):
    return Config(model=model, dataset=DatasetSpec(name, **dataset))


def test_user_files_are_checked_when_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=rf"dataset\.path={tmp_path}/cifar does not exist"):
        datasets.prepare(image_config("cifar10", tmp_path, 32, size=60_000, path="~/cifar"))
    np.savez(tmp_path / "my.npz", inputs=np.ones((5, 4)), targets=np.ones((5, 2)))
    small = dataclasses.replace(CURVES, input_shape=[4])
    for name in ("materials", "random"):
        user_config = config(name, small, path="my.npz", cache=str(tmp_path / "cache"))
        assert cache.open_arrays(datasets.prepare(user_config))[0].shape == (5, 4)
    with pytest.raises(InputError, match=r"inputs has samples of \(4,\), expected \(200, 3\)"):
        datasets.prepare(config("materials", CURVES, path="my.npz", cache=str(tmp_path / "cache")))


def test_evaluation_batches_hold_several_micro_batches():
    """A process with several devices evaluates on one of them."""
    for batch, accumulate, gpus, replicas, per_call in (
        (10, 1, 1, 1, 40), (10, 1, 2, 2, 80), (10, 1, 2, 1, 40), (300, 1, 1, 1, 1024), (2000, 1, 1, 1, 2000),
        (300, 6, 1, 1, 200), (7, 2, 1, 1, 16),
    ):  # fmt: skip
        train = TrainSpec(batch, accumulate=accumulate)
        spec = simulated_spec(gpus, train=train, dataset=DatasetSpec("materials", size=4000))
        trains, validation = datasets.open_sources(spec, 0, replicas)
        subset = datasets.open_training_subset(spec, 0, replicas)
        assert validation is not None and subset is not None
        assert (trains.global_batch, validation.global_batch, subset.global_batch) == (batch * gpus, per_call, per_call)
        seen = [batch.samples for batch in validation.in_order()]
        assert sum(seen) == validation.samples // replicas and max(seen) <= per_call // replicas


def test_a_training_to_a_stop_may_evaluate_only_some_samples():
    """Without a stop all samples are evaluated."""
    for steps, requested, evaluated in ((3, 100, 100), (3, None, 1000), (3, 5000, 1000), (None, 100, 1000)):
        train = TrainSpec(10, evaluate_samples=requested, stop=StopSpec(steps=steps))
        spec = simulated_spec(2, train=train, dataset=DatasetSpec("materials", size=4000))
        trains, validation = datasets.open_sources(spec, 0, 2)
        subset = datasets.open_training_subset(spec, 0, 2)
        assert validation is not None and subset is not None and trains.samples == 3000
        assert (validation.first, validation.samples, subset.first, subset.samples) == (3000, evaluated, 0, evaluated)


def fill(tmp_path, model, name, **dataset):
    (tmp_path / "mine.py").write_text("def build(): ...\n")
    own = ModelSpec(**{"name": "custom", "torch": "mine:build", "loss": "auto", "metric": "auto", **model})
    return datasets.fill_from_samples(
        Config(model=user_code.identify_model(own), dataset=DatasetSpec(name, **dataset))
    ).model


NATIVE_SHAPES = {
    "materials": ({}, {}, ([200, 3], [2], 2)),
    "random": ({"input_shape": [30, 2], "target_shape": [3]}, {}, ([30, 2], [3], 3)),
    "random of one output": ({"input_shape": [30]}, {}, ([30], [1], 1)),
    "materials of a file": ({}, {"path": "my.npz"}, ([4, 2], [3], 3)),
    "random of a file": ({}, {"path": "my.npz"}, ([4, 2], [3], 3)),
    "cifar10_synthetic": ({}, {"classes": 10}, ([32, 32, 3], [], 10)),
    "cifar10": ({}, {"classes": 10, "path": "/x"}, ([32, 32, 3], [], 10)),
    "imagenet": ({}, {"classes": 1000, "path": "/x"}, ([224, 224, 3], [], 1000)),
    "imagenet_synthetic": ({}, {"classes": 9, "image_size": 64}, ([64, 64, 3], [], 9)),
    "imagenet_synthetic of the model's size": (
        {"input_shape": [48, 40, 1], "outputs": 12}, {"classes": 9}, ([48, 40, 1], [], 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NATIVE_SHAPES)
def test_open_shapes_become_those_of_the_samples(tmp_path, case):
    model, dataset, expected = NATIVE_SHAPES[case]
    np.savez(tmp_path / "my.npz", inputs=np.ones((5, 4, 2)), targets=np.ones((5, 3)))
    model_spec = fill(tmp_path, model, case.partition(" ")[0], **dataset)
    assert (model_spec.input_shape, model_spec.target_shape, model_spec.outputs) == expected
    assert model_spec.loss == ("mse" if expected[1] else "cross_entropy") and model_spec.name == "mine:build"


def test_samples_without_shapes_are_refused(tmp_path):
    np.savez(tmp_path / "flat.npz", inputs=np.ones(5), targets=np.ones((5, 3)))
    message = r"^dataset.path=.*flat.npz has inputs of shape \(5,\): they should be \(n, \.\.\.\)"
    with pytest.raises(InputError, match=message):
        fill(tmp_path, {}, "materials", path="flat.npz")
