"""Optimizers and losses by name, against what they should compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from scalebench.adapters.tensorflow import training
from scalebench.spec import InputError

STEPS, RATE = 20, 0.01


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch's compiler, which the first update of an optimizer looks up, and sets by itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def gradients(scale: float) -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=7).astype(np.float32) * np.float32(scale) for i in range(STEPS)]


def by_keras(optimizer: keras.optimizers.Optimizer, scale: float) -> np.ndarray:
    variable = keras.Variable(np.linspace(-1, 1, 7, dtype=np.float32))
    optimizer.build([variable])
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [variable]), autograph=False)
    for gradient in gradients(scale):
        apply(tf.constant(gradient))
    return variable.numpy()


def by_torch(make: Any, scale: float) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = make([parameter])
    for gradient in gradients(scale):
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 1e-7])
def test_adam_is_torchs(scale: float) -> None:
    """Also where gradients are as small as its epsilon, which Keras' own takes in at another place."""
    wanted = by_torch(lambda parameters: torch.optim.Adam(parameters, RATE, eps=1e-7), scale)
    np.testing.assert_allclose(by_keras(training.optimizer("adam", RATE), scale), wanted, rtol=0, atol=1e-6)
    if scale < 1e-5:
        assert np.abs(by_keras(keras.optimizers.Adam(RATE), scale) - wanted).max() > 1e-3


def test_adam_keeps_its_epsilon() -> None:
    adam = training.optimizer("adam", RATE)
    by_keras(adam, 1.0)
    assert adam.epsilon == 1e-7


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
def test_sgd_is_torchs(name: str, momentum: float) -> None:
    wanted = by_torch(lambda parameters: torch.optim.SGD(parameters, RATE, momentum=momentum), 1.0)
    np.testing.assert_allclose(by_keras(training.optimizer(name, RATE), 1.0), wanted, rtol=0, atol=1e-6)


def test_losses_are_per_sample() -> None:
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(training.loss("mse")(outputs, targets), np.square(outputs - targets).mean(1), rtol=1e-6)
    labels = np.array([0, 2, 1, 1, 0])
    wanted = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(5), labels]
    np.testing.assert_allclose(training.loss("cross_entropy")(outputs, labels), wanted, rtol=1e-5)


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'adm'.*adam"):
        training.optimizer("adm", RATE)
    with pytest.raises(InputError, match=r"'cross_entrop'.*cross_entropy"):
        training.loss("cross_entrop")


@pytest.mark.parametrize("scaled", [False, True])
def test_set_exchange(scaled: bool) -> None:
    """Off, gradients go through untouched, also within an optimizer that scales the loss; on again, as it was."""
    inner = training.optimizer("sgd", RATE)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
    pairs, own = [("gradient", "variable")], inner._all_reduce_sum_gradients.__func__
    for _ in range(2):
        training.set_exchange(optimizer, False)
        assert inner._all_reduce_sum_gradients(pairs) == pairs
        assert not hasattr(inner._all_reduce_sum_gradients, "__func__")  # Keras', which does so too outside of replicas
        training.set_exchange(optimizer, True)
        assert inner._all_reduce_sum_gradients.__func__ is own
