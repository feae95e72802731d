"""Every optimizer with a schedule and weight decay against its formula."""

import os
from functools import partial
from itertools import islice

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from scalebench.config.horovod_build import find_horovod_problem
from scalebench.core.spec import OPTIMIZERS
from scalebench.strategies.torch import batches as feeding
from scalebench.strategies.torch import ddp, optimizer
from scalebench.strategies.torch import group as torch_group
from scalebench.strategies.torch.batches import TorchBatch
from tests.strategies.builders import run_training, scheduled_rates, step_weight

STEPS, STEPS_PER_EPOCH, DECAY, MOMENTUM = 12, 6, 0.03, 0.8  # two epochs of 101 samples in batches of 20
RATES = {"sgd": 0.02, "momentum": 0.01, "nesterov": 0.01}
SETTINGS = {"train__weight_decay": DECAY, "train__momentum": MOMENTUM}


def reference_losses(bare, batches, rates):
    """Train the model of `bare` by the formulas instead of an optimizer and return the losses."""
    parameters, losses = list(bare.model.parameters()), []
    states = [{} for _ in parameters]
    for batch, rate in zip(batches, rates, strict=True):
        loss = (bare.model(batch.inputs) - batch.targets).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for weight, gradient, state in zip(parameters, gradients, states, strict=True):
                weight.copy_(step_weight(bare.spec.config.train, state, weight, gradient, rate))
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_of_a_schedule_with_weight_decay(strategy, source, name):
    settings = {"train__optimizer": name, "train__learning_rate": RATES.get(name, 2e-3), **SETTINGS}
    bare, other = strategy("bare_torch", **settings), strategy("bare_torch", **settings)
    rates = scheduled_rates(bare.spec, STEPS, STEPS_PER_EPOCH)
    assert rates[0] < rates[5] > rates[-1] > 0
    batches = islice(map(feeding.to_tensors, source()), STEPS)
    actual = run_training(bare, source(), STEPS, rates=rates).losses
    assert actual == pytest.approx(reference_losses(other, batches, rates), rel=1e-5)
    assert all(group["lr"] == rates[-1] for group in bare.optimizer.param_groups)


def test_the_first_rate_follows_the_learning_rate_rule(strategy):
    """The rule scales the rate for a batch of 20 from a base batch of 5."""
    bare = strategy("bare_torch", train__learning_rate_rule="sqrt", train__base_batch=5)
    assert [group["lr"] for group in bare.optimizer.param_groups] == [2 * bare.spec.config.train.learning_rate]


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
def test_float16_with_a_schedule(strategy, source, name):
    """The scaler steps with the rate that was set: with a rate of 0, weights stay as they are."""
    adapter = strategy("bare_torch", train__precision="float16", train__optimizer=name)
    before = adapter.parameters()
    run_training(adapter, source(), 2, rates=[0.0, 0.0])
    assert all((adapter.parameters()[key] == weights).all() for key, weights in before.items())
    run_training(adapter, source(), 1, rates=[1e-3])
    assert not any((adapter.parameters()[key] == weights).all() for key, weights in before.items())


@pytest.fixture
def eight_ranks(strategy, monkeypatch):
    """Return eight_ranks(name, **changes) -> rank 0 of eight with the kernels of GPUs; collectives do nothing."""
    join = dist.init_process_group
    monkeypatch.setattr(torch_group, "_open_store", lambda *words: FakeStore())
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend, store, rank, world_size, **others: join("fake", store=store, rank=rank, world_size=world_size),
    )
    # The fake group has no result, for which DistributedDataParallel's own hooks look.
    monkeypatch.setattr(ddp.Ddp, "send_bucket", lambda adapter, bucket: ddp._completed_future(bucket.buffer()))
    monkeypatch.setattr(optimizer, "build_optimizer", partial(optimizer.build_optimizer, device="cuda"))
    monkeypatch.setenv("WORLD_SIZE", "8")
    return partial(strategy, processes=8)


SHARDED = ("fsdp_gloo", "tensor_parallel")
BUCKETS = {"strategy__options__overlap": False}
KERNELS = dict.fromkeys(OPTIMIZERS, "fused") | {"rmsprop": "foreach"}


def local_weights(adapter):
    return [getattr(p, "to_local", lambda p=p: p)().detach().clone() for p in adapter.model.parameters()]


QUICK = {
    "fsdp_gloo": OPTIMIZERS,
    "ddp_gloo": OPTIMIZERS,
    "zero1": ("nesterov", "adam"),
    "lightning_ddp_gloo": ("adam",),
}
PAIRS = [(name, optimizer_name) for name in (*QUICK, "tensor_parallel") for optimizer_name in OPTIMIZERS]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "optimizer_name"),
    [
        pair if pair[1] in QUICK.get(pair[0], ("nesterov", "adam")) else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in PAIRS
    ],
)
def test_eight_ranks_step_as_on_gpus(name, optimizer_name, eight_ranks):
    """GPUs get kernels that a CPU never would. DTensor, of which FSDP's weights are and half of the tensor-parallel
    ones, lacks a rule for fused SGD."""
    adapter = eight_ranks(name, train__optimizer=optimizer_name, **({} if name in SHARDED else BUCKETS))
    before = local_weights(adapter)
    for _ in range(2):
        adapter.step(TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 160))
    # Under ZeRO each rank steps only the weights that it owns, and gets those of the others, here none.
    stepped = getattr(adapter.optimizer, "optim", adapter.optimizer)
    owned = {id(parameter) for group in stepped.param_groups for parameter in group["params"]}
    for old, new, parameter in zip(before, local_weights(adapter), adapter.model.parameters(), strict=True):
        assert torch.equal(old, new) == (id(parameter) not in owned)
    for group in stepped.param_groups:
        is_sharded = hasattr(group["params"][0], "to_local")
        expected = (
            "foreach" if is_sharded and optimizer_name in ("sgd", "momentum", "nesterov") else KERNELS[optimizer_name]
        )
        assert [kernel for kernel in ("fused", "foreach") if group.get(kernel)] == [expected]
    adapter.close()
    assert not dist.is_initialized()


@pytest.fixture
def horovod_rank(strategy, monkeypatch):
    """Yield horovod_rank(**changes) -> the only rank of Horovod's group, with the kernels of GPUs."""
    if reason := find_horovod_problem("torch", "gloo", "local"):
        pytest.skip(reason)
    monkeypatch.setattr(optimizer, "build_optimizer", partial(optimizer.build_optimizer, device="cuda"))
    before = dict(os.environ)  # the group sets variables that Horovod's library reads
    yield partial(strategy, "horovod_gloo")
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_horovods_wrapper_steps_as_on_gpus(optimizer_name, horovod_rank):
    """Its optimizer is of another class, and still takes a scaled loss where the kernel does."""
    adapter = horovod_rank(train__optimizer=optimizer_name, train__precision="float16")
    before = local_weights(adapter)
    adapter.step(TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20))
    assert not any(torch.equal(old, new) for old, new in zip(before, local_weights(adapter), strict=True))
    is_fused = KERNELS[optimizer_name] == "fused"
    assert getattr(adapter.optimizer, "_step_supports_amp_scaling", False) == is_fused
    assert [bool(group.get("fused")) for group in adapter.optimizer.param_groups] == [is_fused]
