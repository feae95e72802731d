"""An update in parts is the same update: their gradients are added up, and exchanged once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.measure.timed_loop import Stage, TimedLoop
from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER, LossPart
from scalebench.strategies.torch import profiling
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.precision import Compiled
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import taught

LIGHTNING = pytest.param("lightning_ddp_gloo", marks=pytest.mark.slow)
NAMES = ["bare_torch", "ddp_gloo", "independent_torch", LIGHTNING]
UPDATES = 8  # the sixth is of one sample: the last of an epoch of 101 in batches of 20


def test_parts_of_a_batch() -> None:
    batch = TorchBatch(torch.arange(20.0)[:, None], torch.arange(20), 35)
    parts = batch.split(3)
    assert [(part.samples, part.last, part.global_samples) for part in parts] == [
        (6, False, 35), (7, False, 35), (7, True, 35),
    ]  # fmt: skip
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert parts[1].inputs.data_ptr() == batch.inputs[6:].data_ptr()  # a view
    assert batch.split(1) == [batch] and (batch.share, batch.last) == (1, True)


def test_fewer_samples_than_parts() -> None:
    """The last part has one, since the exchange goes with it."""
    parts = TorchBatch(torch.zeros(2, 1), torch.zeros(2), 2).split(3)
    assert [(part.samples, part.last) for part in parts] == [(0, False), (1, False), (1, True)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_same_losses(strategy: Any, source: Callable[..., Source], name: str, optimizer: str) -> None:
    """sgd would show gradients that are too large or too small, to which adam is blind."""
    settings = {"train__optimizer": optimizer, "train__learning_rate": 0.02 if optimizer == "sgd" else 1e-3}
    parts, whole = strategy(name, train__accumulate=3, **settings), strategy("bare_torch", **settings)
    found, wanted = (taught(one, source(), UPDATES).losses for one in (parts, whole))
    assert found == pytest.approx(wanted, rel=1e-5)
    assert found[-1] < found[0]
    assert parts.last_batch.samples == 20


def test_other_samples_than_parts_ago(strategy: Any, source: Callable[..., Source]) -> None:
    """The loss told is of the whole batch, lazily, and nothing of an earlier update is left in it."""
    parts = strategy("bare_torch", train__accumulate=3, train__learning_rate=0.0)
    batch = next(iter(parts.feed(source())))
    first, second = parts.step(batch), parts.step(batch)
    assert isinstance(first.loss_sum, torch.Tensor) and not first.loss_sum.requires_grad
    assert (first.samples, float(first.loss_sum)) == (20, pytest.approx(float(second.loss_sum), rel=1e-6))


@pytest.mark.parametrize("name", ["ddp_gloo", LIGHTNING])
def test_exchanges_once_in_an_update(strategy: Any, source: Callable[..., Source], name: str) -> None:
    """As often as without parts; under Lightning the new wrapper of a training exchanges something as well."""
    found = []
    for accumulate in (1, 4):
        one = strategy(name, train__accumulate=accumulate)
        batches = list(islice(one.feed(source()), 6))
        one.train(Given(batches[:3]))  # buckets are made anew in the first ones
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            one.train(Given(batches))
        found.append([event.name for event in profiler.events()].count("gloo:all_reduce"))
        assert one.message_sizes() == [4 * one.num_params()]
        assert one.backend_used() == "gloo"
        one.close()
    assert found[0] == found[1] >= 6


class Given:
    """A Loop over batches."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches
        self.parts: list[LossPart] = []

    def __iter__(self) -> Iterator[Any]:
        yield from self._batches

    def done(self, part: Any) -> bool:
        self.parts.append(part)
        return len(self.parts) == len(self._batches)


@pytest.mark.parametrize("option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters"])
@pytest.mark.parametrize("name", ["ddp_gloo", LIGHTNING])
def test_under_every_option_of_ddp(strategy: Any, source: Callable[..., Source], name: str, option: str) -> None:
    one = strategy(name, train__accumulate=3, **{f"strategy__options__{option}": True})
    assert taught(one, source(), 5).losses == pytest.approx(
        taught(strategy("bare_torch"), source(), 5).losses, rel=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_exchange_goes_off_and_on(strategy: Any, source: Callable[..., Source], name: str) -> None:
    one = strategy(name, train__accumulate=3)
    seen = []

    def decide(series: Any) -> bool:
        seen.append(len(series.seconds))
        one.set_gradient_sync(len(series.seconds) % 2 == 0)
        return len(series.seconds) == 4

    one.train(TimedLoop(one, one.feed(source()), [Stage("some", lambda before: 2, decide)]))
    assert seen == [1, 2, 3, 4]
    if "ddp" in name:
        one.set_gradient_sync(False)
        assert one.backend_used() is None
        one.set_gradient_sync(True)
        assert one.backend_used() == "gloo"


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_an_update_are_of_all_its_samples(strategy: Any, source: Callable[..., Source], name: str) -> None:
    one, whole = strategy(name, train__accumulate=3), strategy("bare_torch")
    batch = next(iter(one.feed(source())))
    whole.partial_step(batch, BACKWARD)
    for part in (FORWARD, BACKWARD):
        one.partial_step(batch, part)
    for found, wanted in zip(one.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-6)
    before = one.parameters()
    one.partial_step(batch, OPTIMIZER)
    assert any((one.parameters()[key] != weights).any() for key, weights in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "lightning_ddp_gloo"])
def test_float16_scales_every_part(strategy: Any, source: Callable[..., Source], name: str) -> None:
    parts = strategy(name, train__precision="float16", train__accumulate=3)
    found = taught(parts, source(), 4).losses
    wanted = taught(strategy("bare_torch", train__precision="float16"), source(), 4).losses
    assert found == pytest.approx(wanted, rel=1e-3)
    assert parts.precision.scaler.get_scale() == 65536


def test_profile(strategy: Any, source: Callable[..., Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "KEPT", 1000)
    one = strategy("ddp_gloo", train__accumulate=3)
    one.step(next(iter(one.feed(source()))))
    operations = {found.name: found.calls for found in one.profile(2, tmp_path / "trace.json.gz").operations}
    assert operations["gloo:all_reduce"] == len(one.message_sizes())
    assert operations["aten::mkldnn_convolution"] == 3 * 2  # of the network, in each part


def test_compiled_for_the_shapes_of_parts(strategy: Any, source: Callable[..., Source]) -> None:
    """And for no other: here by a stand-in for the compiler."""
    bare = strategy("bare_torch", train__accumulate=3)
    compiled, made = Compiled.__new__(Compiled), []
    torch.nn.Module.__init__(compiled)
    compiled.model, compiled.shapes = bare.model, set()
    compiled._compiled = lambda inputs: made.append(len(inputs)) or bare.model(inputs)
    bare.compiled = bare.net = compiled
    taught(bare, source(), UPDATES)
    assert made == [6, 7, 7] * (UPDATES - 1)
