"""Observing backend and settings from profiled events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import (
    OperatorCall,
    ProfiledReplay,
    identify_backend,
    identify_settings,
)
from scalebench.workloads.source import Source


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        (["aten::add", "gloo:all_reduce"], "gloo"),
        (["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"], "nccl"),
        (["ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "nccl:all_reduce"], "nccl"),
        (["aten::add", "gloo:broadcast", "c10d::allreduce_"], None),
        (["gloo:all_reduce", "nccl:all_reduce"], "gloo+nccl"),
    ],
)
def test_identify_backend(names: list[str], backend: str | None) -> None:
    assert identify_backend(names) == backend


FLOAT, HALF = torch.float32, torch.float16
IMAGES, LAST = (192, 64, 8, 1), (192, 1, 24, 3)  # strides of 2 pictures of 8 x 8 in 3 colours


def conv(dtype: torch.dtype, strides: tuple[int, ...], name: str = "aten::convolution") -> OperatorCall:
    return OperatorCall(name, dtype, (2, 3, 8, 8), strides)


def product(dtype: torch.dtype, name: str = "aten::addmm") -> OperatorCall:
    return OperatorCall(name, dtype, (2, 3), (3, 1))


@pytest.mark.parametrize(
    ("names", "operations", "settings"),
    [
        ([], [conv(FLOAT, IMAGES)], ("float32", "nchw", "none")),
        ([], [conv(FLOAT, LAST)], ("float32", "nhwc", "none")),
        (["sm80_xmma_fprop_implicit_gemm_tf32f32_f32"], [product(FLOAT)], ("tf32", None, "none")),
        ([], [conv(HALF, IMAGES), product(FLOAT)], ("float16+float32", "nchw", "none")),
        ([], [OperatorCall("aten::convolution", HALF, (2, 1, 8, 8), (64, 1, 8, 1))], ("float16", None, "none")),
        (["Torch-Compiled Region: 0/0"], [conv(FLOAT, LAST, "mkldnn::_convolution_pointwise")],
         ("float32", "nhwc", "inductor")),
        ([], [conv(FLOAT, IMAGES), conv(FLOAT, LAST)], ("float32", "nchw+nhwc", "none")),
        ([], [product(HALF, "aten::add")], (None, None, "none")),
    ],
)  # fmt: skip
def test_identify_settings(names: list[str], operations: list[Any], settings: tuple[str | None, ...]) -> None:
    expected = dict(zip(("precision", "data_format", "compiler"), settings, strict=True))
    assert identify_settings(names, operations) == {key: value for key, value in expected.items() if value is not None}


@pytest.mark.parametrize("broadcast", [False, True])
def test_moving_statistics_are_broadcast_with_that_option_only(
    strategy: Any, source: Callable[..., Source], broadcast: bool
) -> None:
    adapter = strategy(
        "ddp_gloo", model="resnet20_cifar10", strategy__options__broadcast_buffers=broadcast, train__learning_rate=0.0
    )
    batch = TorchBatch(torch.rand(2, 32, 32, 3), torch.tensor([1, 2]), 2)
    for _ in range(3):  # the first steps rebuild the buckets and broadcast their order
        adapter.step(batch)
    replay = ProfiledReplay(batch, 1)
    adapter.train(replay)
    assert ("gloo:broadcast" in replay.event_names()) == broadcast
