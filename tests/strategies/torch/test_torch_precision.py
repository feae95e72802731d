"""Images through a whole strategy: layouts, precisions and compilation change how a network is computed, not what."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch import optimizer as training
from scalebench.strategies.torch import precision
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.precision import check_compiler
from scalebench.workloads.network import Network
from scalebench.workloads.source import Source
from tests.strategies.torch.conftest import own

CPU = torch.device("cpu")
IMAGES = {"model": "resnet20_cifar10"}


@pytest.fixture
def pictures() -> Callable[..., Source]:
    """pictures(batch=20) -> 65 pictures of 10 classes that differ in colour."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 65)
    images = (rng.integers(0, 60, (65, 32, 32, 3)) + 13 * labels[:, None, None, None]).astype(np.uint8)
    return lambda batch=20: Source(images, labels, global_batch=batch, seed=3, replica=0, replicas=1)


@pytest.fixture
def inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiles within tmp_path and this process."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own parts, while they are imported
        import torch._inductor.compile_fx
    before = set(os.environ)
    yield
    torch._dynamo.reset()
    for name in set(os.environ) - before:
        del os.environ[name]


def losses(one: Any, source: Source, steps: int) -> list[float]:
    parts = [one.step(batch) for batch in islice(one.feed(source), steps)]
    return [float(part.loss_sum) / part.samples for part in parts]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_residual_network_learns(strategy: Any, pictures: Callable[..., Source], name: str) -> None:
    bare = strategy("bare_torch", **IMAGES, train__precision=name, train__learning_rate=0.05)
    found = losses(bare, pictures(65), 12)
    assert min(found[-3:]) < 0.5 * found[0]
    assert all(weight.dtype == np.float32 for weight in bare.parameters().values())
    assert bare.settings_used() == {"precision": name, "data_format": "nhwc", "compiler": "none"}


@pytest.mark.parametrize("changes", [{"train__data_format": "nchw"}, {"train__precision": "bfloat16"}])
def test_same_losses_another_way(strategy: Any, pictures: Callable[..., Source], changes: dict[str, Any]) -> None:
    small = {**IMAGES, "train__learning_rate": 1e-3}
    plain, other = strategy("bare_torch", **small), strategy("bare_torch", **small, **changes)
    found = losses(other, pictures(), 4)
    np.testing.assert_allclose(
        found, losses(plain, pictures(), 4), rtol=2e-2 if "bfloat16" in changes.values() else 1e-4
    )
    assert (
        other.settings_used().items() >= {key.removeprefix("train__"): value for key, value in changes.items()}.items()
    )


def test_bytes_and_floats_give_the_same_losses(strategy: Any, pictures: Callable[..., Source]) -> None:
    first, second = strategy("bare_torch", **IMAGES), strategy("bare_torch", **IMAGES)
    batch = next(iter(first.feed(pictures())))
    floats = batch._replace(inputs=batch.inputs.float() / 127.5 - 1)
    assert float(first.step(batch).loss_sum) == float(second.step(floats).loss_sum)


def test_metrics_of_a_classifier(strategy: Any, pictures: Callable[..., Source]) -> None:
    bare = strategy("bare_torch", **IMAGES)
    losses(bare, pictures(), 3)
    found = bare.evaluate(pictures(30))
    images, labels = (torch.from_numpy(array) for array in pictures().arrays())
    with torch.no_grad():
        outputs = bare.model.eval()(images)
    assert found == pytest.approx(
        {
            "cross_entropy": float(torch.nn.functional.cross_entropy(outputs, labels)),
            "accuracy": float((outputs.argmax(1) == labels).float().mean()),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("name", ["ddp_gloo", pytest.param("lightning_ddp_gloo", marks=pytest.mark.slow)])
def test_images_under_every_strategy(strategy: Any, pictures: Callable[..., Source], name: str) -> None:
    """As bare, with what it really ran: here in bfloat16, channels first, without dropout or broadcasts of buffers."""
    wanted = {**IMAGES, "train__precision": "bfloat16", "train__data_format": "nchw"}
    one, bare = strategy(name, **wanted), strategy("bare_torch", **wanted)
    assert losses(one, pictures(), 4) == pytest.approx(losses(bare, pictures(), 4), rel=1e-6)
    assert one.settings_used() == {"precision": "bfloat16", "data_format": "nchw", "compiler": "none"}
    assert one.message_sizes() == [4 * one.num_params()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo"])
def test_float16_scales_and_skips(strategy: Any, source: Callable[..., Source], name: str) -> None:
    """An update whose gradients overflow leaves the weights alone and halves the scale; the next one is made."""
    one = strategy(name, train__precision="float16")
    batch = next(iter(one.feed(source())))
    before, scale = one.parameters(), one.precision.scaler.get_scale()
    one.step(batch._replace(targets=batch.targets + 1e4))  # 65536 x the gradients of it is beyond float16
    assert one.precision.scaler.get_scale() == scale / 2
    assert all((one.parameters()[key] == weights).all() for key, weights in before.items())
    one.precision.scaler.update(128.0)
    one.step(batch)
    assert one.precision.scaler.get_scale() == 128
    assert all(np.abs(one.parameters()[key] - weights).max() > 0 for key, weights in before.items())
    assert one.settings_used() == {"precision": "float16", "compiler": "none"}


def test_tf32_is_of_gpus(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match=r"train\.precision=tf32 is a mode of GPUs"):
        strategy("bare_torch", train__precision="tf32")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(Unsupported, match=r"8\.0 or newer, and Tesla T4 has 7\.5"):
        precision._check_tf32(torch.device("cuda", 0))


def test_float32_means_it() -> None:
    precision.Precision("float32", CPU)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("name", training.OPTIMIZERS)
def test_optimizers_on_channels_last(name: str) -> None:
    """Kernels that go through memory in one line must see gradients lie as parameters do."""
    net = Network("net", (9, 9, 3))
    net.conv(net.conv(net.input, "wide", 8, 3), "narrow", 6, 1)
    made = {}
    for data_format in ("nhwc", "nchw"):
        model = NetworkModule(net, data_format)
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape))
        optimizer = training.optimizer(TrainSpec(optimizer=name), model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 9, 9, 3)).square().mean().backward()
            optimizer.step()
        made[data_format] = [parameter.detach() for parameter in model.parameters()]
    for one, other in zip(*made.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "moved"), [("sgd", 0.02), ("momentum", 0.01 + 0.019), ("adam", 0.02)])
def test_two_steps_of_each_optimizer(name: str, moved: float) -> None:
    """Downhill along a slope of one, by a rate of 0.01."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = training.optimizer(TrainSpec(optimizer=name), [parameter], 0.01)
    parameter.grad = torch.ones(3)
    for _ in range(2):
        optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), -moved), rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("bare_torch", {}),
        ("ddp_gloo", {}),
        ("lightning_ddp_gloo", {}),
        ("bare_torch", own("Series")),
        ("ddp_gloo", own("Series")),
    ],
)
def test_compiled(strategy: Any, source: Callable[..., Source], name: str, model: dict[str, Any]) -> None:
    """The same losses, by way of inductor; the short batch at the end of an epoch is not compiled anew."""
    one, bare = strategy(name, train__compile=True, **model), strategy("bare_torch", **model)
    torch._dynamo.utils.counters.clear()
    batches = list(islice(one.feed(source()), 7))
    assert {batch.samples for batch in batches} == {20, 1}
    found = [float(one.step(batch).loss_sum) for batch in batches]
    assert found == pytest.approx([float(bare.step(batch).loss_sum) for batch in batches], rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert one.settings_used() == {"precision": "float32", "compiler": "inductor"}
    assert one.evaluate(source()).keys() == bare.evaluate(source()).keys()


@pytest.mark.usefixtures("inductor")
def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, "no_such_compiler")}), pytest.raises(Unsupported, match=r"install g\+\+"):
        check_compiler(CPU)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(Unsupported, match="pip install triton"):
        check_compiler(torch.device("cuda", 0))


def test_replays_a_whole_batch(strategy: Any, source: Callable[..., Source]) -> None:
    """And not the last one of an epoch, which may be computed in another way."""
    bare = strategy("bare_torch")
    losses(bare, source(), 6)
    assert isinstance(bare.last_batch, TorchBatch) and bare.last_batch.samples == 20
    assert strategy("bare_torch").settings_used() == {}
