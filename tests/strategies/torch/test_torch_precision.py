"""Memory layouts, precisions and compilation change how a network is computed, but not its results; and every optimizer
with a schedule and weight decay is its formula."""

import os
import warnings
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from scalebench.config.horovod_build import find_horovod_problem
from scalebench.core.spec import OPTIMIZERS, TrainSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch import batches as feeding
from scalebench.strategies.torch import ddp, optimizer, precision
from scalebench.strategies.torch import group as torch_group
from scalebench.strategies.torch import optimizer as training
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.precision import check_compiler
from scalebench.strategies.torch.user_module import UserModule
from scalebench.workloads.source import Source
from tests.strategies.builders import make_images, run_training, scheduled_rates, step_weight
from tests.strategies.torch.conftest import spec_of, user_model
from tests.strategies.torch.user_steps import Numbered

CPU = torch.device("cpu")
IMAGES = {"model": "resnet20_cifar10", "model__input_shape": [8, 8, 3]}


@pytest.fixture
def inductor(tmp_path, monkeypatch):
    """Let inductor compile within tmp_path and in this process."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own parts, while they are imported
        import torch._inductor.compile_fx
    before = set(os.environ)
    yield
    torch._dynamo.reset()
    for name in set(os.environ) - before:
        del os.environ[name]


@pytest.fixture
def pictures():
    return lambda: Source(*make_images(65, side=8), global_batch=20, seed=3, replica=0, replicas=1)


@pytest.mark.parametrize("changes", [{"train__data_format": "nchw"}, {"train__precision": "bfloat16"}])
def test_layout_and_precision_keep_the_losses(strategy, pictures, changes):
    small = {**IMAGES, "train__learning_rate": 1e-3}
    plain, other = strategy("bare_torch", **small), strategy("bare_torch", **small, **changes)
    actual, expected = run_training(other, pictures(), 4).losses, run_training(plain, pictures(), 4).losses
    np.testing.assert_allclose(actual, expected, rtol=2e-2 if "bfloat16" in changes.values() else 1e-4)
    assert all(weight.dtype == np.float32 for weight in other.parameters().values())
    assert {f"train__{key}": value for key, value in other.settings_used().items()}.items() >= changes.items()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo"])
def test_float16_scales_and_skips(strategy, source, name):
    """A step whose gradients overflow leaves the weights as they are and halves the scale; the next one is normal."""
    adapter = strategy(name, train__precision="float16")
    batch = next(iter(adapter.feed(source())))
    before, scale = adapter.parameters(), adapter.precision.scaler.get_scale()
    adapter.step(batch._replace(targets=batch.targets + 1e4))  # 65536 x the gradients of it is beyond float16
    assert adapter.precision.scaler.get_scale() == scale / 2
    assert all((adapter.parameters()[key] == weights).all() for key, weights in before.items())
    adapter.precision.scaler.update(128.0)
    adapter.step(batch)
    assert adapter.precision.scaler.get_scale() == 128
    assert all(np.abs(adapter.parameters()[key] - weights).max() > 0 for key, weights in before.items())
    assert adapter.settings_used() == {"precision": "float16", "compiler": "none"}


@pytest.mark.gpu
def test_tf32_needs_a_recent_gpu_and_only_the_default_leaves_its_switches(strategy, monkeypatch):
    with pytest.raises(Unsupported, match=r"train\.precision=tf32 is a mode of NVIDIA's GPUs"):
        strategy("bare_torch", train__precision="tf32")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(Unsupported, match=r"8\.0 or newer, and Tesla T4 has 7\.5"):
        precision._check_tf32(torch.device("cuda", 0))
    for before in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before
        for name, expected in (("default", before), ("float32", False)):  # the latter for the tests that follow
            precision.Precision(name, CPU)
            assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == expected


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "capability", "allows_tf32", "expected"), [
    ("default", (8, 0), True, "nhwc"), ("default", (8, 0), False, "nchw"), ("default", (7, 0), True, "nchw"),
    ("float32", (9, 0), False, "nchw"), ("tf32", (9, 0), True, "nhwc"), ("float16", (7, 0), False, "nhwc"),
    ("bfloat16", (8, 6), False, "nhwc"),
])  # fmt: skip
def test_the_default_layout_is_that_of_tensor_cores_where_they_are_used(name, capability, allows_tf32, expected):
    train = TrainSpec(precision=name)
    assert precision.select_data_format(train, "cuda", capability, allows_tf32) == expected
    assert precision.select_data_format(train, "cpu", (0, 0), allows_tf32) == "nhwc"
    for wanted in ("nhwc", "nchw"):
        train.data_format = wanted
        assert precision.select_data_format(train, "cuda", capability, allows_tf32) == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("expected", ["nhwc", "nchw"])
def test_networks_are_built_in_the_default_layout(strategy, pictures, expected, monkeypatch):
    monkeypatch.setattr(precision, "select_data_format", lambda *facts: expected)
    bare = strategy("bare_torch", **IMAGES)
    bare.step(next(iter(bare.feed(pictures()))))
    assert bare.settings_used()["data_format"] == expected


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize(
    ("name", "model"),
    [*((name, {}) for name in ("bare_torch", "ddp_gloo", "lightning_ddp_gloo")), *(
        (name, user_model("Series")) for name in ("bare_torch", "ddp_gloo"))],
)  # fmt: skip
def test_compilation_keeps_the_losses(strategy, source, name, model):
    """Losses with inductor are the same; the short batch at the end of an epoch is not compiled again."""
    adapter, bare = strategy(name, train__compile="default", **model), strategy("bare_torch", **model)
    torch._dynamo.utils.counters.clear()
    batches = list(islice(adapter.feed(source()), 7))
    assert {batch.samples for batch in batches} == {20, 1}
    actual = [float(adapter.step(batch).loss_sum) for batch in batches]
    assert actual == pytest.approx([float(bare.step(batch).loss_sum) for batch in batches], rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert adapter.settings_used() == {"precision": "float32", "compiler": "inductor"}
    assert adapter.evaluate(source()).keys() == bare.evaluate(source()).keys()


@pytest.mark.usefixtures("inductor")
def test_a_step_of_ones_own_is_compiled_once():
    """Although its training_step takes the number of the batch, which is 0 then."""
    torch._dynamo.utils.counters.clear()
    step = UserModule(Numbered(), spec_of("bare_torch", model__loss="module").config)
    compiled = torch.compile(step.forward, backend="eager", dynamic=False)
    batch = torch.randn(4, 5), torch.randn(4, 2)
    assert len({float(compiled(*batch).detach()) for _ in range(4)}) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_missing_compiler_is_unsupported(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="pip install triton"):
        check_compiler(torch.device("cuda", 0))
    monkeypatch.setenv("CXX", "no_such_compiler")
    with pytest.raises(Unsupported, match=r"install g\+\+"):
        check_compiler(CPU)


STEPS, STEPS_PER_EPOCH, DECAY, MOMENTUM = 12, 6, 0.03, 0.8  # two epochs of 101 samples in batches of 20
RATES = {"sgd": 0.02, "momentum": 0.01, "nesterov": 0.01}
SETTINGS = {"train__weight_decay": DECAY, "train__momentum": MOMENTUM}


def reference_losses(bare, batches, rates):
    """Train the model of `bare` by the formulas instead of an optimizer and return the losses."""
    parameters, losses = list(bare.model.parameters()), []
    states = [{} for _ in parameters]
    for batch, rate in zip(batches, rates, strict=True):
        loss = (bare.model.module(batch.inputs) - batch.targets).square().mean()
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


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
def test_a_schedule_in_float16_and_the_rule_of_the_first_rate(strategy, source, name):
    """The scaler steps with the rate that was set: with a rate of 0, weights stay as they are. The rule scales the rate
    for a batch of 20 from a base batch of 5."""
    adapter = strategy("bare_torch", train__precision="float16", train__optimizer=name)
    before = adapter.parameters()
    run_training(adapter, source(), 2, rates=[0.0, 0.0])
    assert all((adapter.parameters()[key] == weights).all() for key, weights in before.items())
    run_training(adapter, source(), 1, rates=[1e-3])
    assert not any((adapter.parameters()[key] == weights).all() for key, weights in before.items())
    bare = strategy("bare_torch", train__learning_rate_rule="sqrt", train__base_batch=5)
    assert [group["lr"] for group in bare.optimizer.param_groups] == [2 * bare.spec.config.train.learning_rate]


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


def local_tensor(parameter):
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def local_weights(adapter):
    return [local_tensor(parameter).detach().clone() for parameter in adapter.model.parameters()]


QUICK = {"fsdp_gloo": OPTIMIZERS, "ddp_gloo": OPTIMIZERS, "lightning_ddp_gloo": ("adam",)}
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
    kept_bytes = sum(local.untyped_storage().nbytes() for local in map(local_tensor, adapter.model.parameters()))
    assert (kept_bytes < adapter.num_params()) == (name in SHARDED), (
        "a shard, which is not a view of the complete weights"
    )
    for _ in range(2):
        adapter.step(TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 160))
    # Under ZeRO each rank steps only the weights that it owns, and gets those of the others, here none.
    stepped = getattr(adapter.optimizer, "optim", adapter.optimizer)
    owned = {id(parameter) for group in stepped.param_groups for parameter in group["params"]}
    for old, new, parameter in zip(before, local_weights(adapter), adapter.model.parameters(), strict=True):
        assert torch.equal(old, new) == (id(parameter) not in owned)
    for group in stepped.param_groups:
        is_sharded = hasattr(group["params"][0], "to_local")
        is_foreach = is_sharded and optimizer_name in ("sgd", "momentum", "nesterov")
        expected = "foreach" if is_foreach else KERNELS[optimizer_name]
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


@pytest.mark.parametrize("max_norm", [0.1, 1000.0])
def test_gradients_are_clipped_as_pytorch_does_it(max_norm):
    ours, theirs = (torch.nn.Linear(3, 2) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    for model in (ours, theirs):
        model(torch.arange(6.0).view(2, 3)).square().sum().backward()
    training.clip_gradients([*ours.parameters(), torch.nn.Parameter(torch.ones(1))], max_norm)
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
