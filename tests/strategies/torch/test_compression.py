"""DistributedDataParallel's hooks send as many bytes as they state, and nothing while synchronization is off."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch import TorchBatch

CURVES = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
WEIGHTS = 153441  # of the materials CNN
SEVERAL = {"strategy__options__bucket_cap_mb": 0.01}  # a bucket for nearly every layer
HOOKS = {"bf16": 2, "fp16": 2, "powersgd": 4}  # bytes of an element that is sent


def sent_elements(action):
    """Return the elements of each tensor that Gloo sends during the action, by any thread."""
    threads = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=threads) as profiler:
        action()
    sent = [event for event in profiler.events() if event.name.startswith("gloo:all_")]
    return [size for event in sorted(sent, key=lambda event: event.time_range.start) for (size,) in event.input_shapes]


def train(strategy, hook, **changes):
    """Return rank 0 after the steps in which buckets and factors are set up."""
    adapter = strategy("ddp_gloo", strategy__options__comm_hook=hook, **changes)
    for _ in range(4):
        adapter.step(CURVES)
    return adapter


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("changes", [{}, SEVERAL], ids=["one bucket", "several"])
def test_messages_are_those_that_are_sent(strategy, hook, changes):
    adapter = train(strategy, hook, **changes)
    sizes = adapter.message_sizes()
    expected = Counter(size // HOOKS[hook] for size in sizes)
    assert Counter(filter(None, sent_elements(lambda: adapter.step(CURVES)))) == expected
    assert Counter(sent_elements(lambda: adapter.run_isolated_sync(sizes))) == expected
    if hook == "powersgd":
        shapes = [(each.shape[0], each[0].numel()) for each in adapter.model.parameters()]
        assert sum(sizes) == 4 * sum(min(4 * (a + b), a * b) if 8 * (a + b) < a * b else a * b for a, b in shapes)
        assert sum(sizes) < 4 * WEIGHTS / 10
    else:
        assert sum(sizes) == 2 * WEIGHTS
    adapter.set_gradient_sync(False)
    assert sent_elements(lambda: adapter.step(CURVES)) == []


@pytest.mark.parametrize("hook", HOOKS)
def test_sizes_of_messages_are_not_counted_in_each_step(strategy, hook, monkeypatch):
    """Steps are timed: what is known of a bucket is not worked out again."""
    adapter = train(strategy, hook, **SEVERAL)
    sizes = adapter.message_sizes()
    monkeypatch.setattr(adapter, "_message_bytes", lambda bucket: pytest.fail("counted in a step"))
    adapter.step(CURVES)
    assert sizes and adapter.message_sizes() == sizes


class Odd(nn.Module):
    """A module with a parameter that is a single number, and with a layer whose gradients are 0."""

    def __init__(self):
        super().__init__()
        self.dense, self.dead = nn.Linear(200 * 3, 2), nn.Linear(200 * 3, 50)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs):
        inputs = inputs.flatten(1)
        return self.dense(inputs) / self.temperature + 0 * self.dead(inputs).sum()


@pytest.mark.parametrize("hook", HOOKS)
def test_odd_parameters_have_finite_gradients(strategy, hook):
    adapter = strategy("ddp_gloo", strategy__options__comm_hook=hook)
    adapter.net = adapter.wrap(Odd())
    for _ in range(4):
        adapter.accumulate_gradients(CURVES)
    assert all(parameter.grad.isfinite().all() for parameter in adapter.net.parameters())


@pytest.mark.gpu
def test_powersgd_on_the_cpu_of_a_machine_with_gpus(strategy, monkeypatch):
    """PyTorch's hook would let CUDA wait for a device that is the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(Unsupported, match="set CUDA_VISIBLE_DEVICES= before the command"):
        strategy("ddp_gloo", strategy__options__comm_hook="powersgd")
