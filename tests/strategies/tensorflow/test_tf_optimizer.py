"""Optimizers and losses by name, against reference computations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from scalebench.core import spec
from scalebench.core.errors import InputError
from scalebench.core.spec import TrainSpec
from scalebench.strategies.tensorflow import optimizer as training

STEPS, RATE = 20, 0.01
RATES = [RATE * (1 + step % 7) / 7 for step in range(STEPS)]  # as a warm-up, again and again
TORCHS = {
    "adam": lambda one, decay: torch.optim.Adam([one], RATE, eps=1e-7, weight_decay=decay),
    "adamw": lambda one, decay: torch.optim.AdamW([one], RATE, eps=1e-7, weight_decay=decay),
    "sgd": lambda one, decay: torch.optim.SGD([one], RATE, weight_decay=decay),
    "momentum": lambda one, decay: torch.optim.SGD([one], RATE, momentum=0.8, weight_decay=decay),
    "rmsprop": lambda one, decay: torch.optim.RMSprop([one], RATE, alpha=0.9, eps=1e-7, weight_decay=decay),
}


def of(name: str, decay: float = 0.0) -> keras.optimizers.Optimizer:
    return training.create_optimizer(TrainSpec(optimizer=name, weight_decay=decay, momentum=0.8), RATE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch's compiler, which the first update of an optimizer looks up, and sets by itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def gradients(scale: float) -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=7).astype(np.float32) * np.float32(scale) for i in range(STEPS)]


def by_keras(optimizer: keras.optimizers.Optimizer, scale: float, rates: Sequence[float] = ()) -> np.ndarray:
    variable = keras.Variable(np.linspace(0.5, 2, 7, dtype=np.float32))
    optimizer.build([variable])
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [variable]), autograph=False)
    for gradient, rate in zip_longest(gradients(scale), rates):
        if rate is not None:
            training.set_learning_rate(optimizer, rate)
        apply(tf.constant(gradient))
    assert apply.experimental_get_tracing_count() == 1
    return variable.numpy()


def by_torch(make: Any, scale: float, rates: Sequence[float] = ()) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.linspace(0.5, 2, 7))
    optimizer = make(parameter)
    for gradient, rate in zip_longest(gradients(scale), rates):
        if rate is not None:
            optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 1e-7])
def test_adam_equals_torchs(scale: float) -> None:
    """Also where gradients are as small as its epsilon, which Keras' own takes in at another place."""
    adam, wanted = of("adam"), by_torch(lambda one: TORCHS["adam"](one, 0.0), scale)
    np.testing.assert_allclose(by_keras(adam, scale), wanted, rtol=0, atol=1e-6)
    assert adam.epsilon == 1e-7
    if scale < 1e-5:
        assert np.abs(by_keras(keras.optimizers.Adam(RATE), scale) - wanted).max() > 1e-3


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", training.OPTIMIZERS)
def test_optimizers_equal_torchs(name: str, decay: float) -> None:
    """With gradients of an ordinary size and such as the epsilon is felt in, at rates that change with every update."""
    for scale in (1.0, 1e-6):
        wanted = by_torch(lambda one: TORCHS[name](one, decay), scale, RATES)
        np.testing.assert_allclose(by_keras(of(name, decay), scale, RATES), wanted, rtol=3e-6)
    if decay:
        assert np.abs(wanted - by_torch(lambda one: TORCHS[name](one, 0.0), scale, RATES)).max() > 1e-3


def test_all_optimizers_of_the_config_exist() -> None:
    assert set(training.OPTIMIZERS) == set(spec.OPTIMIZERS) == set(TORCHS)


def test_the_learning_rate_of_an_optimizer_with_loss_scaling() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(of("sgd"))
    optimizer.build([keras.Variable(np.zeros(2, np.float32))])
    training.set_learning_rate(optimizer, 0.25)
    assert float(optimizer.learning_rate) == 0.25


def test_losses_are_per_sample() -> None:
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(
        training.loss_function("mse")(outputs, targets), np.square(outputs - targets).mean(1), rtol=1e-6
    )
    labels = np.array([0, 2, 1, 1, 0])
    wanted = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(5), labels]
    np.testing.assert_allclose(training.loss_function("cross_entropy")(outputs, labels), wanted, rtol=1e-5)


def test_unknown_names_show_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'adm'.*adam"):
        of("adm")
    with pytest.raises(InputError, match=r"'cross_entrop'.*cross_entropy"):
        training.loss_function("cross_entrop")


@pytest.mark.parametrize("scaled", [False, True])
def test_gradient_reduction_can_be_switched(scaled: bool) -> None:
    """Off, gradients go through untouched, also within an optimizer that scales the loss; on again, as it was."""
    inner = of("sgd")
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
    pairs, own = [("gradient", "variable")], inner._all_reduce_sum_gradients.__func__
    for _ in range(2):
        training.set_gradient_reduction(optimizer, False)
        assert inner._all_reduce_sum_gradients(pairs) == pairs
        assert not hasattr(inner._all_reduce_sum_gradients, "__func__")  # Keras', which does so too outside of replicas
        training.set_gradient_reduction(optimizer, True)
        assert inner._all_reduce_sum_gradients.__func__ is own
