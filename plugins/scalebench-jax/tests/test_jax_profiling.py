"""Kinds of operations, recordings, messages and backends as observed, and the clock."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from scalebench_jax import profiling
from scalebench_jax.profiling import ProgramBacklog, device_seconds, record_lines

from scalebench.plugin_api import Event


def test_kinds_of_operations() -> None:
    """NCCL's kernels bear no name of an operation; what the host does without one is none of XLA's."""
    events = {
        ("while", "while", "cpu"): ("while", False),
        ("fusion.2.clone", "fusion.2.clone", "cpu"): ("fusion", False),
        ("all-reduce", "all-reduce", "cpu"): ("all-reduce", True),
        ("wait", "", "cpu"): None,
        ("ncclDevKernel_AllReduce", "", "cuda"): ("ncclDevKernel_AllReduce", True),
        ("gemm", "dot.1", "cuda"): ("gemm", False),
    }
    for (name, operation, device), kind in events.items():
        assert profiling.classify_event(Event(name, 0, 1, operation), device, {"all-reduce"}) == kind


def test_what_jax_records() -> None:
    product = jax.jit(lambda x: (x @ x).sum())
    x, begin_ps = np.ones((200, 200), np.float32), time.time_ns() * 1000
    product(x).block_until_ready()
    with record_lines() as lines:
        product(x).block_until_ready()
    operations = [event for line in lines for event in line.events if event.operation]
    assert operations
    assert all(begin_ps < event.start_ps < time.time_ns() * 1000 for event in operations)


HLO = """
  %all-reduce.1 = f32[7,16]{1,0} all-reduce(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %all-reduce = (f32[], bf16[3,5]{1,0}, f32[10]{0}) all-reduce(%b, %c, %d), channel_id=2, to_apply=%add
  %all-reduce-start.3 = f32[1000]{0} all-reduce-start(%e), channel_id=3, to_apply=%add
  %all-reduce-done.3 = f32[1000]{0} all-reduce-done(%all-reduce-start.3)
  %get-tuple-element = f32[10]{0} get-tuple-element(%all-reduce), index=2
  ROOT %all-reduce.9 = f32[2]{0} all-reduce(%f), channel_id=4, to_apply=%add
"""


def test_messages_of_a_program() -> None:
    assert profiling.all_reduce_bytes(HLO) == {
        "all-reduce.1": 448,
        "all-reduce": 4 + 30 + 40,
        "all-reduce-start.3": 4000,
        "all-reduce.9": 8,
    }


@pytest.mark.parametrize("summed", [True, False])
def test_messages_of_what_xla_makes(summed: bool, devices: list[jax.Device]) -> None:
    def function(x: Any) -> Any:
        return lax.psum(x * 2, "devices") if summed else x * 2

    mapped = jax.shard_map(
        function, mesh=Mesh(np.array(devices), ("devices",)), in_specs=Spec("devices"), out_specs=Spec("devices"),
        check_vma=False,
    )  # fmt: skip
    hlo = jax.jit(mapped).lower(np.ones((3, 100), np.float32)).compile().as_text()
    assert list(profiling.all_reduce_bytes(hlo).values()) == ([400] if summed else [])


def test_backends() -> None:
    assert profiling.observed_backend(["fusion.1", "all-reduce.1"], ["all-reduce.1"]) == "xla"
    assert (
        profiling.observed_backend(["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all-reduce.1"], ["all-reduce.1"])
        == "nccl"
    )
    assert profiling.observed_backend(["fusion.1"], ["all-reduce.1"]) is None
    assert profiling.observed_backend(["all-reduce.1"], []) is None


class Issued:
    def __init__(self) -> None:
        self.waited = False

    def block_until_ready(self) -> None:
        self.waited = True


def test_backlog_waits_for_the_oldest_only() -> None:
    backlog: Any = ProgramBacklog(max_issued=2)
    issued = [Issued() for _ in range(5)]
    for one in issued:
        backlog.add(one)
    assert [one.waited for one in issued] == [True, True, True, False, False]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_quick_device_does_not_wait_for_a_slow_one(slow: int) -> None:
    """Neither the order of the parts nor that of the threads matters."""
    both_wait = threading.Barrier(2, timeout=20)
    quick_is_through = threading.Event()

    def part(number: int) -> Any:
        def ready() -> None:
            both_wait.wait()
            if number == slow:
                assert quick_is_through.wait(20)
            else:
                quick_is_through.set()

        return SimpleNamespace(index=(slice(number, number + 1),), data=SimpleNamespace(block_until_ready=ready))

    shards = SimpleNamespace(addressable_shards=[part(1), part(0)])
    with ThreadPoolExecutor(2) as waiters:
        seconds = device_seconds(lambda: shards, waiters)  # type: ignore[arg-type, return-value]
    assert seconds[slow] == max(seconds)
