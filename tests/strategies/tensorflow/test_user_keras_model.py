"""A user's Keras model under strategies of one process: steps, statistics, random numbers, and names of weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow.user_model import UserModel
from scalebench.workloads.source import Source

HERE = "tests.strategies.tensorflow.user_models"
CURVES = ("model=custom", "model.input_shape=[200,3]", "model.target_shape=[2]", "model.outputs=2", "model.loss=mse")
WAYS = [
    "bare_tensorflow strategy.options.loop=fit",
    "mirrored",
    "mirrored strategy.options.loop=fit",
    "mirrored train.accumulate=3",
    "central_storage_device",
    "multi_gpu_model",
]


def own(name: str, *words: str) -> tuple[str, ...]:
    return (*CURVES, "model.metric=mse", f"model.keras={HERE}:{name}", *words)


class Updates:
    """A loop of so many updates, which keeps their losses."""

    def __init__(self, batches: Any, updates: int) -> None:
        self.losses: list[float] = []
        self._batches = islice(batches, updates)
        self._updates = updates

    def __iter__(self) -> Any:
        return self._batches

    def done(self, part: Any) -> bool:
        self.losses.append(float(part.loss_sum) / part.samples)
        return len(self.losses) == self._updates


def train(one: Any, source: Source, updates: int = 6) -> list[float]:
    loop = Updates(iter(one.feed(source)), updates)
    one.train(loop)
    return loop.losses


@pytest.mark.parametrize("way", WAYS)
def test_steps_equal_those_of_bare(strategy: Any, source: Callable[..., Source], way: str) -> None:
    """With a table whose rows come up several times in a batch, and with weights that the loss does not hang on."""
    devices = 1 if way.startswith("bare") else 2
    one = strategy(*own("Tabled", "train.dropout=false"), *f"strategy={way}".split(), f"gpus={devices}")
    bare = strategy(*own("Tabled", "train.dropout=false"), "strategy=bare_tensorflow", "gpus=1")
    np.testing.assert_allclose(train(one, source(global_batch=27)), train(bare, source(global_batch=27)), rtol=1e-5)
    pairs = zip(one.parameters().items(), bare.parameters().values(), strict=True)
    for (name, array), other in pairs:
        np.testing.assert_allclose(array, other, atol=2e-5, err_msg=name)
    assert one.num_params() == sum(array.size for array in one.parameters().values()) == 108
    if devices == 2:
        assert sum(one.message_sizes()) == 4 * 108
    one.partial_step(one.last_batch, "forward")
    one.local_step(one.last_batch) if devices == 2 else None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mirrored", "central_storage_device", "multi_gpu_model"])
def test_moving_statistics_are_means_over_devices(strategy: Any, source: Callable[..., Source], way: str) -> None:
    """As each device finds them from its own samples; the strategy begins where one device alone does."""
    one = strategy(*own("normalised", "train.dropout=false"), f"strategy={way}", "gpus=2")
    batch = next(iter(source(global_batch=20)))
    after = []
    for samples in np.split(batch.inputs, 2):
        alone = strategy(*own("normalised", "train.dropout=false"), "strategy=bare_tensorflow", "gpus=1").model
        alone(samples, training=True)
        after.append([variable.numpy() for variable in alone.moving_statistics])
    train(one, source(global_batch=20), 1)
    assert len(one.model.moving_statistics) == 2
    for variable, *each in zip(one.model.moving_statistics, *after, strict=True):
        assert np.abs(each[0] - each[1]).max() > 1e-5
        np.testing.assert_allclose(variable.numpy(), np.mean(each, 0), atol=1e-6)


def test_replicas_draw_different_numbers(strategy: Any, source: Callable[..., Source]) -> None:
    one = strategy(*own("normalised"), "strategy=mirrored", "gpus=2")
    train(one, source(), 3)
    ((first, draws), (second, others)) = (own.numpy() for own in one.model.random_states[0].value.values)
    assert (second - first, draws, others) == (1, 3, 3)


def test_towers_continue_the_random_states(strategy: Any, source: Callable[..., Source]) -> None:
    """What each draws is another number, and is not drawn again by the next update."""
    one = strategy(*own("normalised"), "strategy=multi_gpu_model", "gpus=2")
    before = one.model.random_states[0].numpy()
    train(one, source(), 3)
    assert (one.model.random_states[0].numpy() - before).tolist() == [0, 6]


def test_ranks_draw_different_numbers(made: Any) -> None:
    states = []
    for rank in (0, 1):
        one = made(*own("normalised"), "strategy=bare_tensorflow", "gpus=1")
        one.place = one.place.__class__(**{**vars(one.place), "rank": rank})
        one.setup()
        states.append(one.model.random_states[0].numpy())
    assert (states[1] - states[0]).tolist() == [1, 0]


def test_accumulation_that_is_unsupported(made: Any) -> None:
    one = made(*own("normalised"), "strategy=central_storage_device", "gpus=2", "train.accumulate=2")
    with pytest.raises(Exception, match=r"central_storage_device .* without batch normalisation, or dropout"):
        one.setup()


def test_all_kinds_of_dropout_are_switched_off(strategy: Any, source: Callable[..., Source]) -> None:
    one = strategy(*own("droppers", "train.dropout=false"), "strategy=bare_tensorflow", "gpus=1")
    inputs = next(iter(source())).inputs
    np.testing.assert_allclose(one.model(inputs, training=True), one.model(inputs, training=False), atol=1e-6)
    assert one.model.random_states == []
    assert len(strategy(*own("droppers"), "strategy=bare_tensorflow", "gpus=1").model.random_states) >= 6


def test_frozen_layers_stay(strategy: Any, source: Callable[..., Source]) -> None:
    one = strategy(*own("normalised", "model.options.frozen=true"), "strategy=multi_gpu_model", "gpus=2")
    first = one.model.inner.get_layer("first")
    before = first.get_weights()
    train(one, source(), 2)
    assert not any(variable.path.startswith("first") for variable in [*one.model.trained, *one.model.moving_statistics])
    assert all(np.array_equal(a, b) for a, b in zip(before, first.get_weights(), strict=True))


def test_bytes_are_scaled_around_0() -> None:
    identity = keras.Sequential([keras.layers.Lambda(lambda x: x)])
    found = UserModel(identity)(tf.constant([[0, 51, 255]], tf.uint8))
    np.testing.assert_allclose(found, [[-1.0, -0.6, 1.0]], atol=1e-6)


def test_layers_with_equal_names() -> None:
    taken = keras.Input((4,))
    apart = [keras.Sequential([keras.layers.Dense(4)]) for _ in range(2)]
    both = keras.Model(taken, apart[1](apart[0](taken)))
    for variable in both.variables:
        variable._path = f"same/{variable.name}"
    assert list(UserModel(both).variables_by_name) == ["same/kernel", "same/bias", "same/kernel:2", "same/bias:2"]


def test_pictures_and_classes(strategy: Any, pictures: Callable[..., Source]) -> None:
    """uint8, labels, bfloat16 and channels last."""
    shape = ("model=custom", "dataset=cifar10_synthetic", "model.input_shape=[32,32,3]", "model.target_shape=[]")
    words = (
        "model.loss=cross_entropy",
        "model.metric=accuracy",
        f"model.keras={HERE}:pictures",
        "train.data_format=nhwc",
    )
    one = strategy(*shape, *words, "strategy=bare_tensorflow", "gpus=1", "train.precision=bfloat16")
    losses = train(one, pictures(), 60)
    assert np.mean(losses[-6:]) < losses[0]
    assert one.settings_used() == {"precision": "bfloat16", "data_format": "nhwc", "compiler": "none"}
    assert set(one.evaluate(pictures())) == {"cross_entropy", "accuracy"}
    assert all(variable.dtype == "float32" for variable in one.model.trained)
