"""Gradient accumulation: a step in parts is the same step, whose gradients are synchronized once."""

from itertools import islice

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.precision import CompiledModel
from tests.strategies.builders import RecordedTraining, run_training

LIGHTNING = pytest.param("lightning_ddp_gloo", marks=pytest.mark.slow)
NAMES = ["bare_torch", "ddp_gloo", "independent_torch", LIGHTNING]
STEPS = 8  # the sixth is of one sample: the last of an epoch of 101 in batches of 20


def test_a_batch_is_split_into_views():
    """The last of fewer samples than parts has one, since it synchronizes the gradients."""
    batch = TorchBatch(torch.arange(20.0)[:, None], torch.arange(20), 35)
    parts = batch.split(3)
    sizes = [(6, False, 35), (7, False, 35), (7, True, 35)]
    assert [(part.samples, part.last, part.global_samples) for part in parts] == sizes
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert parts[1].inputs.data_ptr() == batch.inputs[6:].data_ptr()  # a view
    assert batch.split(1) == [batch] and (batch.share, batch.last) == (1, True)
    parts = TorchBatch(torch.zeros(2, 1), torch.zeros(2), 2).split(3)
    assert [(part.samples, part.last) for part in parts] == [(0, False), (1, False), (1, True)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", [pytest.param("adam", marks=pytest.mark.slow), "sgd"])
def test_accumulation_keeps_the_losses(strategy, source, name, optimizer):
    """sgd reveals gradients that are too large or too small, which adam hides."""
    settings = {"train__optimizer": optimizer, "train__learning_rate": 0.02 if optimizer == "sgd" else 1e-3}
    parts, complete = strategy(name, train__accumulate=3, **settings), strategy("bare_torch", **settings)
    actual, expected = (run_training(adapter, source(), STEPS).losses for adapter in (parts, complete))
    assert actual == pytest.approx(expected, rel=1e-5)
    assert actual[-1] < actual[0]
    assert parts.last_batch.samples == 20


@pytest.mark.parametrize("name", ["ddp_gloo", LIGHTNING])
def test_gradients_are_synchronized_once_per_step(strategy, source, name):
    """As often as without parts; under Lightning a training's new wrapper communicates as well."""
    actual = []
    for accumulate in (1, 4):
        adapter = strategy(name, train__accumulate=accumulate)
        batches = list(islice(adapter.feed(source()), 6))
        adapter.train(RecordedTraining(adapter, batches, 3))  # the first steps rebuild the buckets
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            adapter.train(RecordedTraining(adapter, batches, 6))
        actual.append([event.name for event in profiler.events()].count("gloo:all_reduce"))
        assert adapter.message_sizes() == [4 * adapter.num_params()]
        assert adapter.backend_used() == "gloo"
        adapter.close()
    assert actual[0] == actual[1] >= 6


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_step_use_all_its_samples(strategy, source, name):
    adapter, complete = strategy(name, train__accumulate=3), strategy("bare_torch")
    batch = next(iter(adapter.feed(source())))
    complete.partial_step(batch, BACKWARD)
    for part in (FORWARD, BACKWARD, BACKWARD):  # of one pass, not added up over several
        adapter.partial_step(batch, part)
    for actual, expected in zip(adapter.model.parameters(), complete.model.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-6)
    before = adapter.parameters()
    adapter.partial_step(batch, OPTIMIZER)
    assert any((adapter.parameters()[key] != weights).any() for key, weights in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "lightning_ddp_gloo"])
def test_float16_scales_every_part(strategy, source, name):
    parts, bare = (
        strategy(name, train__precision="float16", train__accumulate=3),
        strategy("bare_torch", train__precision="float16"),
    )
    actual, expected = (run_training(each, source(), 4).losses for each in (parts, bare))
    assert actual == pytest.approx(expected, rel=1e-3)
    assert parts.precision.scaler.get_scale() == 65536


def test_compilation_covers_the_shapes_of_parts(strategy, source):
    """It compiles for no other shapes; the compiler is replaced by a fake."""
    bare = strategy("bare_torch", train__accumulate=3)
    compiled, made = CompiledModel.__new__(CompiledModel), []
    torch.nn.Module.__init__(compiled)
    compiled.model, compiled.shapes = bare.model, set()
    compiled._compiled = lambda *batch: made.append(len(batch[0])) or bare.model(*batch)
    bare.compiled = bare.net = compiled
    run_training(bare, source(), STEPS)
    assert made == [6, 7, 7] * (STEPS - 1)
