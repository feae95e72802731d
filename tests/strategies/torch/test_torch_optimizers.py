"""Every optimizer under a schedule, with weight decay, beside its formula written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from scalebench.core.spec import OPTIMIZERS
from scalebench.strategies.torch import batches as feeding
from scalebench.strategies.torch import optimizer
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import scheduled, taught

UPDATES, PER_EPOCH, DECAY, MOMENTUM = 12, 6, 0.03, 0.8  # two epochs of 101 samples in batches of 20
RATES = {"sgd": 0.02, "momentum": 0.01}
SETTINGS = {"train__weight_decay": DECAY, "train__momentum": MOMENTUM}


def change(name: str, state: dict[str, Tensor], weight: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """The weight after an update, by the formula of the optimizer; `state` is kept between updates."""
    if name == "adamw":
        weight = weight * (1 - rate * DECAY)
    else:
        gradient = gradient + DECAY * weight
    if name == "sgd":
        return weight - rate * gradient
    if name == "momentum":
        state["v"] = MOMENTUM * state.get("v", 0) + gradient
        return weight - rate * state["v"]
    if name == "rmsprop":
        state["s"] = 0.9 * state.get("s", 0) + 0.1 * gradient**2
        return weight - rate * gradient / (state["s"].sqrt() + 1e-7)
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["s"] = 0.999 * state.get("s", 0) + 0.001 * gradient**2
    mean, square = state["m"] / (1 - 0.9 ** state["t"]), state["s"] / (1 - 0.999 ** state["t"])
    return weight - rate * mean / (square.sqrt() + 1e-7)


def by_hand(bare: Any, batches: Iterator[Any], rates: list[float]) -> list[float]:
    """Losses of a training of the model of `bare` without any optimizer."""
    parameters, losses = list(bare.model.parameters()), []
    states: list[dict[str, Tensor]] = [{} for _ in parameters]
    for batch, rate in zip(batches, rates, strict=True):
        loss = (bare.model(batch.inputs) - batch.targets).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for weight, gradient, state in zip(parameters, gradients, states, strict=True):
                weight.copy_(change(bare.spec.config.train.optimizer, state, weight, gradient, rate))
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_of_a_schedule_with_weight_decay(strategy: Any, source: Callable[..., Source], name: str) -> None:
    settings = {"train__optimizer": name, "train__learning_rate": RATES.get(name, 2e-3), **SETTINGS}
    bare, other = strategy("bare_torch", **settings), strategy("bare_torch", **settings)
    rates = scheduled(bare.spec, UPDATES, PER_EPOCH)
    assert rates[0] < rates[5] > rates[-1] > 0
    batches = islice(map(feeding.as_tensors, source()), UPDATES)
    found = taught(bare, source(), UPDATES, rates=rates).losses
    assert found == pytest.approx(by_hand(other, batches, rates), rel=1e-5)
    assert all(group["lr"] == rates[-1] for group in bare.optimizer.param_groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adamw"])
@pytest.mark.parametrize("framework", ["ddp_gloo", "lightning_ddp_gloo"])
def test_the_same_under_wrappers(strategy: Any, source: Callable[..., Source], name: str, framework: str) -> None:
    """Where the rate goes on is set from within Lightning's own loop."""
    settings = {"train__optimizer": name, **SETTINGS}
    one, bare = strategy(framework, **settings), strategy("bare_torch", **settings)
    rates = scheduled(bare.spec, 4, 2)
    found, wanted = (taught(each, source(), 4, rates=rates).losses for each in (one, bare))
    assert found == pytest.approx(wanted, rel=1e-6)


def test_all_names_are_known() -> None:
    assert tuple(sorted(optimizer.OPTIMIZERS)) == tuple(sorted(OPTIMIZERS))


def test_begins_at_the_rate_of_its_batch(strategy: Any) -> None:
    """As the rule scales it: a batch of 20 where 5 were meant."""
    bare = strategy("bare_torch", train__learning_rate_rule="sqrt", train__base_batch=5)
    assert [group["lr"] for group in bare.optimizer.param_groups] == [2 * bare.spec.config.train.learning_rate]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float16_with_a_schedule(strategy: Any, source: Callable[..., Source], name: str) -> None:
    """The scaler steps at the rate that was set: at nothing, weights stay where they are."""
    one = strategy("bare_torch", train__precision="float16", train__optimizer=name)
    before = one.parameters()
    taught(one, source(), 2, rates=[0.0, 0.0])
    assert all((one.parameters()[key] == weights).all() for key, weights in before.items())
    taught(one, source(), 1, rates=[1e-3])
    assert not any((one.parameters()[key] == weights).all() for key, weights in before.items())
