"""The optimizers take the steps that PyTorch's take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from scalebench_jax import optimizer

from scalebench.core.errors import InputError
from scalebench.core.spec import OPTIMIZERS, TrainSpec
from scalebench.strategies.torch import optimizer as torch_training
from scalebench.strategies.torch.step_module import LOSSES

RATES = (0.05, 0.05, 0.005, 0.005, 0.02)  # what a schedule may do


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_pytorchs(name: str, weight_decay: float) -> None:
    """Small gradients too, which tell where epsilon is added, and rates that change, which tell what momentum is of."""
    train = TrainSpec(optimizer=name, weight_decay=weight_decay, momentum=0.8)
    rng = np.random.default_rng(0)
    start = rng.normal(size=20).astype(np.float32)
    gradients = (rng.normal(size=(5, 20)) * 10.0 ** -np.arange(20).clip(0, 8)).astype(np.float32)

    direction, weights = optimizer.create_optimizer(train), jnp.asarray(start)
    slots = direction.init(weights)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = torch_training.build_optimizer(train, [parameter], RATES[0])
    for rate, gradient in zip(RATES, gradients, strict=True):
        step, slots = direction.update(jnp.asarray(gradient), slots, weights)
        weights = optax.apply_updates(weights, -rate * step)
        theirs.param_groups[0]["lr"] = rate
        parameter.grad = torch.from_numpy(gradient.copy())
        theirs.step()
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["mse", "cross_entropy"])
def test_losses_are_pytorchs(name: str) -> None:
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(7, 5)).astype(np.float32)
    targets = rng.random((7, 5), np.float32) if name == "mse" else rng.integers(0, 5, 7)
    found = jax.jit(optimizer.loss_function(name))(outputs, targets)
    wanted = LOSSES[name].mean(torch.from_numpy(outputs), torch.from_numpy(targets))
    assert found.shape == (7,)
    assert float(found.mean()) == pytest.approx(wanted.item(), rel=1e-5)


def test_unknown_names_are_told() -> None:
    with pytest.raises(InputError, match="momentum"):
        optimizer.create_optimizer(TrainSpec(optimizer="momentun"))
    with pytest.raises(InputError, match="mse"):
        optimizer.loss_function("mze")
