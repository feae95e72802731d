from __future__ import annotations

import gzip
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from scalebench_jax import profiling
from scalebench_jax.xplane import Event, Line, Recording, record_profile


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
