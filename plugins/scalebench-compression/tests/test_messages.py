"""What the strategy sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from scalebench.plugin_api import InputError, Unsupported
from scalebench.strategies.torch import TorchBatch
from scalebench.strategies.torch.step_module import StepModule

CURVES = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
PICTURES = TorchBatch(torch.rand(4, 32, 32, 3), torch.tensor([1, 2, 3, 4]), 4)
WEIGHTS = 153441  # of the materials CNN
SEVERAL = "strategy.options.bucket_cap_mb=0.01"


def carried(action: Callable[[], Any]) -> list[int]:
    """Bytes of each tensor that Gloo carried meanwhile: of an all-gather one rank's part, as all are of bytes.

    What one exchange makes the next of is sent by whichever thread gets to it: the profiler looks at all of them.
    """
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=everywhere) as profiler:
        action()
    seen = [event for event in profiler.events() if event.name.startswith("gloo:all_")]
    return [size for event in sorted(seen, key=lambda one: one.time_range.start) for (size,) in event.input_shapes]


def trained(made: Any, *words: str, batch: TorchBatch = CURVES) -> Any:
    """Rank 0 after the updates in which buckets are set up."""
    one = made("ddp_topk", *words)
    one.setup()
    for _ in range(4):
        one.step(batch)
    return one


@pytest.mark.parametrize(
    ("share", "words", "sent_bytes"),
    [(0.1, [], 8 * 15345), (0.01, [], 8 * 1535), (1, [], 8 * WEIGHTS), (0.01, [SEVERAL], None)],
)
def test_messages_are_those_that_travel(made: Any, share: float, words: list[str], sent_bytes: int | None) -> None:
    one = trained(made, f"strategy.options.share={share}", *words)
    sizes = one.message_sizes()
    assert (len(sizes) > 1) == bool(words) and sent_bytes in (None, sum(sizes))
    assert carried(lambda: one.step(CURVES)) == sizes
    one.run_isolated_sync(sizes)  # the first one also tries the operation
    assert Counter(carried(lambda: one.run_isolated_sync(sizes))) == Counter(sizes)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_pictures_in_both_layouts(made: Any, layout: str) -> None:
    one = trained(made, "model=cifar10_cnn", f"train.data_format={layout}", "train.batch_per_device=4", batch=PICTURES)
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


@pytest.mark.parametrize("share", [0.1, 1e-6])
def test_odd_parameters(made: Any, share: float) -> None:
    one = made("ddp_topk", f"strategy.options.share={share}")
    one.setup()
    one.net = one.wrap(StepModule(Odd(), one.model.loss))
    for _ in range(4):
        one.accumulate_gradients(CURVES)
    assert one.message_sizes()
    assert all(parameter.grad.isfinite().all() for parameter in one.net.parameters())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["share=0"], "strategy.options.share=0 should be above 0 and at most 1"),
        (["share=1.01"], "strategy.options.share=1.01 should be above 0 and at most 1"),
    ],
)
def test_wrong_values_are_one_line(made: Any, words: list[str], line: str) -> None:
    with pytest.raises(InputError) as said:
        made("ddp_topk", *(f"strategy.options.{word}" for word in words))
    assert line in str(said.value) and "\n" not in str(said.value)


def test_a_scaled_loss_with_and_without_error_feedback(made: Any) -> None:
    with pytest.raises(Unsupported, match=r"train\.precision=float16 scales each loss differently: take bfloat16"):
        made("ddp_topk", "train.precision=float16").setup()
    made("ddp_topk", "train.precision=float16", "strategy.options.error_feedback=false").setup()
