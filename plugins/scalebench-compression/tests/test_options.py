"""Options of the strategy: the words for wrong ones, and what it cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.strategies.base import Unsupported


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("ddp_topk", ["share=0"], "strategy.options.share=0 should be above 0 and at most 1"),
        ("ddp_topk", ["share=1.01"], "strategy.options.share=1.01 should be above 0 and at most 1"),
        ("ddp_topk", ["share=nan"], "strategy.options.share=nan should be above 0 and at most 1"),
        ("ddp_topk", ["share=much"], "strategy.options.share='much' should be float"),
        ("ddp_topk", ["bucket_cap_mb=none"], "strategy.options.bucket_cap_mb='none' should be float"),
    ],
)
def test_wrong_values_are_one_line(made: Any, name: str, words: list[str], line: str) -> None:
    with pytest.raises(InputError) as said:
        made(name, *(f"strategy.options.{word}" for word in words))
    assert line in str(said.value)
    assert "\n" not in str(said.value)


def test_a_scaled_loss_and_error_feedback(made: Any) -> None:
    with pytest.raises(Unsupported, match=r"train\.precision=float16 scales each loss differently: take bfloat16"):
        made("ddp_topk", "train.precision=float16").setup()


def test_a_scaled_loss_without_error_feedback(made: Any) -> None:
    made("ddp_topk", "train.precision=float16", "strategy.options.error_feedback=false").setup()
