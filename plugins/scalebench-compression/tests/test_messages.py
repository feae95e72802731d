"""What a strategy says of its messages, against what torch's profiler sees Gloo carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.torch import TorchBatch
from scalebench.strategies.torch.step_module import StepModule

CURVES = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
PICTURES = TorchBatch(torch.rand(4, 32, 32, 3), torch.tensor([1, 2, 3, 4]), 4)
WEIGHTS = 153441  # of the materials CNN
SEVERAL = ["strategy.options.bucket_cap_mb=0.01"]


def carried(action: Callable[[], Any]) -> list[int]:
    """Elements of each tensor that Gloo carried meanwhile; of an all-gather one rank's part.

    What one exchange makes the next of is sent by whichever thread gets to it: the profiler looks at all of them.
    """
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=everywhere) as profiler:
        action()
    seen = [event for event in profiler.events() if event.name.startswith("gloo:all_")]
    return [size for event in sorted(seen, key=lambda one: one.time_range.start) for (size,) in event.input_shapes]


def trained(made: Any, name: str, *words: str, batch: TorchBatch = CURVES) -> Any:
    """Rank 0 after the updates in which buckets and factors are set up."""
    one = made(name, *words)
    one.setup()
    for _ in range(4):
        one.step(batch)
    return one


@pytest.mark.parametrize(
    ("name", "element_bytes", "words"),
    [
        ("ddp_topk", 1, []),
        ("ddp_topk", 1, [*SEVERAL, "strategy.options.share=0.01"]),
    ],
)
def test_messages_are_those_that_travel(made: Any, name: str, element_bytes: int, words: list[str]) -> None:
    one = trained(made, name, *words)
    told = one.message_sizes()
    assert (len(told) > 1) == (words[:1] == SEVERAL)
    sent = [size * element_bytes for size in carried(lambda: one.step(CURVES)) if size]
    assert (sent, one.message_sizes()) == (told, told)
    replayed = [size * element_bytes for size in carried(lambda: one.run_isolated_sync(told))]
    assert Counter(replayed) == Counter(told)


@pytest.mark.parametrize(
    ("name", "word", "sent_bytes"),
    [
        ("ddp_topk", "strategy.options.share=0.1", 8 * 15345),
        ("ddp_topk", "strategy.options.share=0.01", 8 * 1535),
        ("ddp_topk", "strategy.options.share=1", 8 * WEIGHTS),
    ],
)
def test_how_much_less(made: Any, name: str, word: str, sent_bytes: int) -> None:
    one = trained(made, name, word)
    assert sum(one.message_sizes()) == sent_bytes


@pytest.mark.parametrize("name", ["ddp_topk"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_pictures_in_both_layouts(made: Any, name: str, layout: str) -> None:
    small = "train.batch_per_device=4"
    one = trained(made, name, "model=cifar10_cnn", f"train.data_format={layout}", small, batch=PICTURES)
    before = one.parameters()
    loss = float(one.step(PICTURES).loss_sum)
    assert loss == loss
    assert all((array != before[key]).any() for key, array in one.parameters().items())


class Odd(nn.Module):
    """With a parameter that is a single number, and a layer that is dead: its gradients are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dead = nn.Linear(200 * 3, 2), nn.Linear(200 * 3, 50)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.flatten(1)
        return self.dense(inputs) / self.temperature + 0 * self.dead(inputs).sum()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ddp_topk", []),
        ("ddp_topk", ["strategy.options.share=1e-6"]),
    ],
)
def test_odd_parameters(made: Any, name: str, words: list[str]) -> None:
    one = made(name, *words)
    one.setup()
    one.net = one.wrap(StepModule(Odd(), one.model.loss))
    for _ in range(4):
        one.accumulate_gradients(CURVES)
    assert one.message_sizes()
    assert all(parameter.grad.isfinite().all() for parameter in one.net.parameters())


@pytest.mark.parametrize("name", ["ddp_topk"])
def test_nothing_travels_while_the_exchange_is_off(made: Any, name: str) -> None:
    one = trained(made, name)
    told = one.message_sizes()
    one.set_gradient_sync(False)
    assert carried(lambda: one.step(CURVES)) == []
    one.set_gradient_sync(True)
    assert carried(lambda: one.step(CURVES)) != []
    assert carried(lambda: [one.partial_step(CURVES, part) for part in ("forward", "backward", "optimizer")]) == []
    assert one.message_sizes() == told


def test_parts_of_a_batch_travel_once(made: Any) -> None:
    """Gradients are added up first, and compressed with the last part."""
    whole = trained(made, "ddp_topk")
    told = whole.message_sizes()
    whole.close()
    parts = trained(made, "ddp_topk", "train.accumulate=4")
    assert parts.message_sizes() == told
    assert carried(lambda: parts.step(CURVES)) == told


@pytest.mark.parametrize("name", ["ddp_topk"])
def test_who_carried_it(made: Any, name: str) -> None:
    one = made(name)
    one.setup()
    with pytest.raises(RuntimeError, match="there was no training"):
        one.backend_used()
    one.step(CURVES)
    assert one.backend_used() == "gloo"
