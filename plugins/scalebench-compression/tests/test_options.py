"""Options of the strategies: the words for wrong ones, and what they cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalebench.core.errors import InputError
from scalebench.strategies.base import Unsupported


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("ddp_topk", ["share=0"], "strategy.options.share=0 should be above 0 and at most 1"),
        ("ddp_topk", ["share=1.01"], "strategy.options.share=1.01 should be above 0 and at most 1"),
        ("ddp_topk", ["share=nan"], "strategy.options.share=nan should be above 0 and at most 1"),
        ("ddp_topk", ["share=much"], "strategy.options.share='much' should be float"),
        ("ddp_powersgd", ["rank=0"], "strategy.options.rank=0 should be at least 1"),
        ("ddp_powersgd", ["start_iter=1"], "strategy.options.start_iter=1 should be at least 2"),
        ("ddp_powersgd", ["start_iter=1", "warm_start=false"], "start_iter=1 should be at least 2"),
        (
            "ddp_powersgd",
            ["start_iter=-1", "warm_start=false", "error_feedback=false"],
            "start_iter=-1 should not be negative",
        ),
        ("ddp_powersgd", ["min_compression_rate=-1"], "min_compression_rate=-1 should not be negative"),
        ("ddp_fp16", ["bucket_cap_mb=none"], "strategy.options.bucket_cap_mb='none' should be float"),
    ],
)
def test_wrong_values_are_one_line(made: Any, name: str, words: list[str], line: str) -> None:
    with pytest.raises(InputError) as said:
        made(name, *(f"strategy.options.{word}" for word in words))
    assert line in str(said.value)
    assert "\n" not in str(said.value)


def test_without_memory_powersgd_may_begin_at_once(made: Any) -> None:
    off = [f"strategy.options.{key}=false" for key in ("error_feedback", "warm_start")]
    assert made("ddp_powersgd", "strategy.options.start_iter=0", *off).options.start_iter == 0


@pytest.mark.parametrize("name", ["ddp_powersgd", "ddp_topk"])
def test_a_scaled_loss_and_error_feedback(made: Any, name: str) -> None:
    with pytest.raises(Unsupported, match=r"train\.precision=float16 scales each loss differently: take bfloat16"):
        made(name, "train.precision=float16").setup()


@pytest.mark.parametrize("name", ["ddp_powersgd", "ddp_topk"])
def test_a_scaled_loss_without_error_feedback(made: Any, name: str) -> None:
    made(name, "train.precision=float16", "strategy.options.error_feedback=false").setup()


def test_powersgd_on_the_cpu_of_a_machine_with_gpus(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's hook would ask CUDA to wait for a device that is the CPU."""
    one = made("ddp_powersgd")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(Unsupported, match="set CUDA_VISIBLE_DEVICES= before the command"):
        one.setup()
