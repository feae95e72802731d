"""The profiler's file, from one made by hand as GPUs leave it, and from a real recording."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow import profiling

BEGUN_NS = 1_800_000_000_000_000_000


def space(begun_ns: int = BEGUN_NS, from_ns: int = 0) -> bytes:
    """A thread, and a stream of a GPU with a line about it; each has one event, 2 ms after `from_ns` and 1 ms long."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    made = xplane_pb2.XSpace()
    lines = [("/host:CPU", "tf_Compute/1", "call/a:AddN"), ("/device:GPU:1", "Stream #7(Compute)", "void sum<f>(x)")]
    lines += [("/device:GPU:1", "TensorFlow Ops", "AddN"), ("/host:CPU", "xla", "fusion.3"), ("/host:CPU", "p", "a b")]
    for plane_name, line_name, event_name in lines:
        plane = made.planes.add(name=plane_name)
        for number, name in enumerate(["tf_op", "hlo_op", "call/a:AddN"], start=1):
            plane.stat_metadata[number].name = name
        plane.event_metadata[5].name = event_name
        line = plane.lines.add(name=line_name, timestamp_ns=from_ns)
        event = line.events.add(metadata_id=5, offset_ps=2 * 10**9, duration_ps=10**9)
        if "GPU" in plane_name:
            event.stats.add(metadata_id=1, ref_value=3)
        if line_name == "xla":
            event.stats.add(metadata_id=2, ref_value=3)
    environment = made.planes.add(name="Task Environment")
    environment.stat_metadata[1].name = "profile_start_time"
    environment.stats.add(metadata_id=1, uint64_value=begun_ns)
    return bytes(made.SerializeToString())


def test_lines_with_their_operations() -> None:
    found = [
        (line.name, line.device, event.name, event.operation)
        for line in profiling.parse_xspace(space())
        for event in line.events
    ]
    assert found == [
        ("tf_Compute/1", "cpu", "call/a:AddN", "call/a:AddN"),
        ("GPU 1 Stream #7(Compute)", "cuda", "void sum<f>(x)", "call/a:AddN"),
        ("xla", "cpu", "fusion.3", "fusion.3:fusion"),
        ("p", "cpu", "a b", ""),
    ]


@pytest.mark.parametrize("from_ns", [0, BEGUN_NS])
def test_times_are_since_the_epoch(from_ns: int) -> None:
    """Whether the lines count from the beginning of the recording or from the epoch themselves."""
    for line in profiling.parse_xspace(space(from_ns=from_ns)):
        (event,) = line.events
        assert event.start_s == pytest.approx(BEGUN_NS / 1e9 + 0.002, abs=1e-6)
        assert event.duration_s == pytest.approx(0.001)


def test_a_real_recording_has_the_clock_of_the_machine() -> None:
    with profiling.record_lines() as lines:
        begun_s = time.time()
        product = tf.function(tf.linalg.matmul)
        for _ in range(20):  # the first of them may be over before its thread is watched
            product(tf.ones([50, 50]), tf.ones([50, 50]))
        ended_s = time.time()
        assert lines == []
    found, *_ = [event for line in lines for event in line.events if "MatMul" in event.operation]
    assert begun_s - 1e-3 <= found.start_s <= found.start_s + found.duration_s <= ended_s + 1e-3
    assert found.duration_s > 0
