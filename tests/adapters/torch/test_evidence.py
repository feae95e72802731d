"""Which backend carried the gradients, from names of profiled events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scalebench.adapters.torch.evidence import Replay, backend_of
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
def test_backend_of(names: list[str], backend: str | None) -> None:
    assert backend_of(names) == backend


def test_replay_ends() -> None:
    loop = Replay("batch", 3)
    assert [loop.done(None) for _ in loop] == [False, False, True]


@pytest.mark.parametrize("name", ["ddp_gloo", "lightning_ddp_gloo"])
def test_no_exchange_is_seen_when_it_is_off(strategy: Any, source: Callable[..., Source], name: str) -> None:
    one = strategy(name)
    one.step(next(iter(one.feed(source()))))
    one.exchange(False)
    assert one.backend_used() is None
    one.exchange(True)
    assert one.backend_used() == "gloo"


def test_needs_a_training(strategy: Any) -> None:
    with pytest.raises(RuntimeError, match="there was no training"):
        strategy("ddp_gloo").backend_used()
