"""Every optimizer with a schedule and weight decay against its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from scalebench.core.spec import OPTIMIZERS, TrainSpec
from scalebench.strategies.torch import batches as feeding
from scalebench.strategies.torch import optimizer
from scalebench.workloads.source import Source
from tests.strategies.builders import run_training, scheduled_rates

STEPS, STEPS_PER_EPOCH, DECAY, MOMENTUM = 12, 6, 0.03, 0.8  # two epochs of 101 samples in batches of 20
RATES = {"sgd": 0.02, "momentum": 0.01, "nesterov": 0.01}
SETTINGS = {"train__weight_decay": DECAY, "train__momentum": MOMENTUM}


def step_weight(name: str, state: dict[str, Tensor], weight: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """Return the weight after a step by the optimizer's formula; `state` is kept between steps."""
    if name == "adamw":
        weight = weight * (1 - rate * DECAY)
    else:
        gradient = gradient + DECAY * weight
    if name == "sgd":
        return weight - rate * gradient
    if name in ("momentum", "nesterov"):
        state["v"] = MOMENTUM * state.get("v", 0) + gradient
        return weight - rate * (state["v"] if name == "momentum" else gradient + MOMENTUM * state["v"])
    if name == "rmsprop":
        state["s"] = 0.9 * state.get("s", 0) + 0.1 * gradient**2
        return weight - rate * gradient / (state["s"].sqrt() + 1e-7)
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["s"] = 0.999 * state.get("s", 0) + 0.001 * gradient**2
    mean, square = state["m"] / (1 - 0.9 ** state["t"]), state["s"] / (1 - 0.999 ** state["t"])
    return weight - rate * mean / (square.sqrt() + 1e-7)


def reference_losses(bare: Any, batches: Iterator[Any], rates: list[float]) -> list[float]:
    """Train the model of `bare` by the formulas instead of an optimizer and return the losses."""
    parameters, losses = list(bare.model.parameters()), []
    states: list[dict[str, Tensor]] = [{} for _ in parameters]
    for batch, rate in zip(batches, rates, strict=True):
        loss = (bare.model(batch.inputs) - batch.targets).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for weight, gradient, state in zip(parameters, gradients, states, strict=True):
                weight.copy_(step_weight(bare.spec.config.train.optimizer, state, weight, gradient, rate))
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_of_a_schedule_with_weight_decay(strategy: Any, source: Callable[..., Source], name: str) -> None:
    settings = {"train__optimizer": name, "train__learning_rate": RATES.get(name, 2e-3), **SETTINGS}
    bare, other = strategy("bare_torch", **settings), strategy("bare_torch", **settings)
    rates = scheduled_rates(bare.spec, STEPS, STEPS_PER_EPOCH)
    assert rates[0] < rates[5] > rates[-1] > 0
    batches = islice(map(feeding.to_tensors, source()), STEPS)
    actual = run_training(bare, source(), STEPS, rates=rates).losses
    assert actual == pytest.approx(reference_losses(other, batches, rates), rel=1e-5)
    assert all(group["lr"] == rates[-1] for group in bare.optimizer.param_groups)


def test_all_optimizers_of_the_spec_exist() -> None:
    assert tuple(sorted(optimizer.OPTIMIZERS)) == tuple(sorted(OPTIMIZERS))


def test_the_first_rate_follows_the_learning_rate_rule(strategy: Any) -> None:
    """The rule scales the rate for a batch of 20 from a base batch of 5."""
    bare = strategy("bare_torch", train__learning_rate_rule="sqrt", train__base_batch=5)
    assert [group["lr"] for group in bare.optimizer.param_groups] == [2 * bare.spec.config.train.learning_rate]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float16_with_a_schedule(strategy: Any, source: Callable[..., Source], name: str) -> None:
    """The scaler steps with the rate that was set: with a rate of 0, weights stay as they are."""
    adapter = strategy("bare_torch", train__precision="float16", train__optimizer=name)
    before = adapter.parameters()
    run_training(adapter, source(), 2, rates=[0.0, 0.0])
    assert all((adapter.parameters()[key] == weights).all() for key, weights in before.items())
    run_training(adapter, source(), 1, rates=[1e-3])
    assert not any((adapter.parameters()[key] == weights).all() for key, weights in before.items())


@pytest.fixture
def eight_ranks() -> Iterator[Any]:
    """The mesh of rank 0 in a group of eight whose collective operations do nothing."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (8,))
    finally:
        dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["fsdp", "tensor_parallel"])
def test_sharded_weights_are_stepped_as_on_gpus(kind: str, name: str, device: str, eight_ranks: Any) -> None:
    """GPUs get kernels that a CPU never would; DTensor lacks a rule for fused SGD. Half of the tensor-parallel weights
    are plain tensors."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    if kind == "fsdp":
        fully_shard(model, mesh=eight_ranks)
    else:
        parallelize_module(model, eight_ranks, {"0": ColwiseParallel(output_layouts=None)})
    train = TrainSpec(optimizer=name, momentum=MOMENTUM, weight_decay=DECAY)
    stepped = optimizer.build_optimizer(train, model.parameters(), 0.1, device)
    before = [getattr(p, "to_local", lambda p=p: p)().detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        stepped.step()
    after = [getattr(p, "to_local", lambda p=p: p)().detach() for p in model.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    if name in ("sgd", "momentum", "nesterov") and device == "cuda":
        assert all(
            group["fused"] != hasattr(group["params"][0], "to_local") and group["foreach"] != group["fused"]
            for group in stepped.param_groups
        )
