"""Own times, recordings, messages and backends as observed, and the clock."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from scalebench_jax import profiling
from scalebench_jax.profiling import (
    Event,
    Line,
    MeasuredReplay,
    ProgramBacklog,
    Recording,
    device_seconds,
    record_profile,
)


def test_own_times_are_without_what_lies_within() -> None:
    line = Line("thread", "cpu", [
        Event("while", 0, 100, "while"), Event("fusion.1", 10, 30, "fusion.1"), Event("wait", 12, 5),
        Event("fusion.2.clone", 50, 20, "fusion.2.clone"), Event("all-reduce", 100, 40, "all-reduce"),
    ])  # fmt: skip
    found = profiling.summarize_profile([line], 2, 1.0, {"all-reduce"})
    kinds = {one.name: (one.calls, one.self_s, one.collective) for one in found.operations}
    assert kinds == {
        "while": (0.5, pytest.approx(25e-9), False),
        "fusion": (1.0, pytest.approx(25e-9), False),
        "all-reduce": (0.5, pytest.approx(20e-9), True),
    }
    assert found.kernel_s == pytest.approx(70e-9)
    assert found.collective_s == pytest.approx(20e-9)


def test_gpus_are_told_by_their_kernels() -> None:
    """NCCL's kernels bear no name of an operation; what the host did meanwhile does not count."""
    lines = [
        Line("stream", "cuda", [Event("ncclDevKernel_AllReduce", 0, 10), Event("gemm", 10, 30, "dot.1")]),
        Line("thread", "cpu", [Event("dot.1", 0, 500, "dot.1")]),
    ]
    found = profiling.summarize_profile(lines, 1, 1.0, {"all-reduce"})
    assert [(one.name, one.device, one.collective) for one in found.operations] == [
        ("gemm", "cuda", False),
        ("ncclDevKernel_AllReduce", "cuda", True),
    ]


def test_nothing_seen_is_null() -> None:
    found = profiling.summarize_profile([], 1, 1.0, set())
    assert (found.kernel_s, found.collective_s, found.operations) == (None, None, [])


def test_what_jax_records(tmp_path: Path) -> None:
    product = jax.jit(lambda x: (x @ x).sum())
    x = np.ones((200, 200), np.float32)
    product(x).block_until_ready()
    with record_profile() as recording:
        product(x).block_until_ready()
    operations = [event for line in recording.lines for event in line.events if event.operation]
    assert operations
    path = tmp_path / "trace.json.gz"
    profiling.write_chrome_trace(path, recording, "rank 0")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert trace["baseTimeNanoseconds"] == recording.start_ns > 1e18
    begun_us = [one["ts"] for one in trace["traceEvents"] if one["ph"] == "X"]
    assert begun_us
    assert min(begun_us) >= 0


def test_only_what_began_within() -> None:
    line = Line("thread", "cpu", [Event("a", 5, 1), Event("b", 10, 100), Event("c", 30, 1)])
    assert [event.name for event in line.within(6, 20).events] == ["b"]
    assert Recording().lines == []


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


def test_measured_steps_begin_after_a_warm_up_step() -> None:
    waits: list[int] = []
    loop = MeasuredReplay("batch", 3, lambda: waits.append(len(seen)))
    seen: list[Any] = []
    for batch in loop:
        seen.append(batch)
        if loop.done(None):
            break
    assert seen == ["batch"] * 4
    assert waits == [1, 4]
    assert 0 < loop.start_ns < loop.end_ns


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
