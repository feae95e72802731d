"""Memory layouts, precisions and compilation change how a network is computed, but not its results."""

import os
import warnings
from itertools import islice

import numpy as np
import pytest
import torch

from scalebench.core.spec import ModelSpec, TrainSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch import optimizer as training
from scalebench.strategies.torch import precision
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.precision import check_compiler
from scalebench.strategies.torch.user_step import UserStep
from scalebench.workloads.network import Network
from scalebench.workloads.source import Source
from tests.strategies.builders import make_images, run_training
from tests.strategies.torch.conftest import user_model
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


@pytest.mark.parametrize("name", ["ddp_gloo", pytest.param("lightning_ddp_gloo", marks=pytest.mark.slow)])
def test_images_under_every_strategy(strategy, pictures, name):
    """Losses and observed settings in bfloat16 with channels first are those of the bare strategy."""
    expected = {**IMAGES, "train__precision": "bfloat16", "train__data_format": "nchw"}
    adapter, bare = strategy(name, **expected), strategy("bare_torch", **expected)
    losses = run_training(bare, pictures(), 2).losses
    assert run_training(adapter, pictures(), 2).losses == pytest.approx(losses, rel=1e-6)
    assert adapter.settings_used() == {"precision": "bfloat16", "data_format": "nchw", "compiler": "none"}
    assert adapter.message_sizes() == [4 * adapter.num_params()]


@pytest.mark.gpu
def test_kernels_in_another_layout_are_recorded(strategy, pictures):
    """FSDP and ZeRO need contiguous kernels, while images stay channels last."""
    bare = strategy("bare_torch", **IMAGES)
    bare.step(next(iter(bare.feed(pictures()))))
    assert bare.settings_used()["data_format"] == "nhwc"
    for parameter in bare.model.parameters():
        parameter.data = parameter.data.contiguous()
        parameter.grad = None
    assert bare.settings_used()["data_format"] == "nhwc (nchw kernels)"


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


def test_tf32_needs_a_recent_gpu(strategy, monkeypatch):
    with pytest.raises(Unsupported, match=r"train\.precision=tf32 is a mode of GPUs"):
        strategy("bare_torch", train__precision="tf32")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(Unsupported, match=r"8\.0 or newer, and Tesla T4 has 7\.5"):
        precision._check_tf32(torch.device("cuda", 0))


@pytest.mark.gpu
@pytest.mark.parametrize("before", [True, False])
def test_only_the_default_leaves_the_switches_of_tf32(before):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before
    for name, expected in (("default", before), ("float32", False)):  # the latter for the tests that follow
        precision.Precision(name, CPU)
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == expected


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "capability", "allows_tf32", "expected"),
    [
        ("default", (8, 0), True, "nhwc"), ("default", (8, 0), False, "nchw"), ("default", (7, 0), True, "nchw"),
        ("float32", (9, 0), False, "nchw"), ("tf32", (9, 0), True, "nhwc"), ("float16", (7, 0), False, "nhwc"),
        ("bfloat16", (8, 6), False, "nhwc"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("name", training.OPTIMIZERS)
def test_optimizers_on_channels_last(name):
    """Fused kernels process memory linearly, so that gradients need the layout of their parameters."""
    net = Network("net", (9, 9, 3))
    net.conv(net.conv(net.input, "wide", 8, 3), "narrow", 6, 1)
    made = {}
    for data_format in ("nhwc", "nchw"):
        model = NetworkModule(net, data_format)
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape))
        optimizer = training.build_optimizer(TrainSpec(optimizer=name), model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 9, 9, 3)).square().mean().backward()
            optimizer.step()
        made[data_format] = [parameter.detach() for parameter in model.parameters()]
    for first, other in zip(*made.values(), strict=True):
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("bare_torch", {}),
        ("ddp_gloo", {}),
        ("lightning_ddp_gloo", {}),
        ("bare_torch", user_model("Series")),
        ("ddp_gloo", user_model("Series")),
    ],
)
def test_compilation_keeps_the_losses(strategy, source, name, model):
    """Losses with inductor are the same; the short batch at the end of an epoch is not compiled again."""
    adapter, bare = strategy(name, train__compile=True, **model), strategy("bare_torch", **model)
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
    step = UserStep(Numbered(), "default", ModelSpec("custom", loss="module"), as_is=False)
    compiled = torch.compile(step.forward, backend="eager", dynamic=False)
    batch = torch.randn(4, 5), torch.randn(4, 2)
    assert len({float(compiled(*batch).detach()) for _ in range(4)}) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("inductor")
def test_a_missing_compiler_is_unsupported(monkeypatch):
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, "no_such_compiler")}), pytest.raises(Unsupported, match=r"install g\+\+"):
        check_compiler(CPU)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(Unsupported, match="pip install triton"):
        check_compiler(torch.device("cuda", 0))


def test_probes_replay_a_full_batch(strategy, source):
    """The last batch of an epoch may be computed in another way."""
    bare = strategy("bare_torch")
    run_training(bare, source(), 6)
    assert isinstance(bare.last_batch, TorchBatch) and bare.last_batch.samples == 20
    assert strategy("bare_torch").settings_used() == {}
