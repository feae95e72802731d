"""Recordings of the profiler (one made by hand as for GPUs, one real), exclusive times, profiles of real steps, and
backends, messages and the compiler as profiling."""

import gzip
import json
import os
import time
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import tensorflow as tf

from scalebench.strategies import recording
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.recording import Event, Line
from scalebench.strategies.tensorflow import profiling
from scalebench.strategies.tensorflow.mirrored import ReplicaCollective
from tests.strategies.builders import run_training
from tests.strategies.tensorflow.conftest import DEVICES, mirrored

START_NS = 1_800_000_000_000_000_000


def space(start_ns=START_NS, from_ns=0):
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
    environment.stats.add(metadata_id=1, uint64_value=start_ns)
    return bytes(made.SerializeToString())


@pytest.mark.gpu
@pytest.mark.parametrize(("events", "on_gpus", "backend"), [
    ({"cuda": ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"]}, True, "nccl"),
    ({"cpu": ["NcclAllReduce:NcclAllReduce", "AddN:AddN"]}, True, "nccl"),
    ({"cpu": ["step/Reduce:CollectiveReduceV2", "ncclAllReduce"]}, True, "nccl"),
    ({"cpu": ["step/Reduce:CollectiveReduceV2"], "cuda": ["sgemm"]}, True, "ring"),
    ({"cpu": ["step/Reduce:CollectiveReduceV2"]}, False, "ring"),
    ({"cpu": ["step/Reduce:CollectiveReduceV2"]}, True, None),
    ({"cpu": ["other:Add"]}, False, None),
])  # fmt: skip
def test_a_profiler_without_the_gpus_does_not_take_nccl_for_a_ring(events, on_gpus, backend):
    lines = [Line("", device, [Event(name, 0, 1) for name in names]) for device, names in events.items()]
    types = {"Reduce": "CollectiveReduceV2"}
    if backend is None:
        with pytest.raises(NotMeasured, match="profiler recorded no"):
            profiling.identify_backend(types, lines, on_gpus)
    else:
        assert profiling.identify_backend(types, lines, on_gpus) == backend


RECORDINGS = Path(__file__).parents[2] / "golden" / "recordings"


def read_recording(name):
    """Return the lines of an XSpace that is written as text."""
    from google.protobuf import text_format
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = text_format.Parse((RECORDINGS / f"{name}.pbtxt").read_text(), xplane_pb2.XSpace())
    return profiling.parse_xspace(space.SerializeToString())


@pytest.mark.gpu
def test_recorded_streams_and_threads():
    """A GPU's counters are not a stream, and a second process has a plane of its own. An event without metadata has no
    name, and none of them is an operation."""
    stream, thread = read_recording("xplane_gpu_stream")
    copies = [Event("MemcpyD2D", 500 * SECOND, 2 * SECOND), Event("MemcpyD2D", 501 * SECOND, SECOND // 2)]
    assert stream == Line("GPU 0 Stream #14(MemcpyH2D)", "cuda", copies)
    assert thread == Line("Thread 2", "cpu", [Event("Event 2", 2_000_000, 200)])
    profile = profiling.summarize_profile([stream, thread], 1, 3.0, (), True)
    (copied,) = profile.operations
    assert (copied.name, copied.calls, copied.self_s, copied.collective, copied.device) == (
        "MemcpyD2D", 2, 2.0, False, "cuda",
    )  # fmt: skip
    assert (profile.kernel_s, profile.collective_s) == (2.0, None)
    (thread,) = read_recording("xplane_host_thread")
    assert thread == Line("Thread1", "cpu", [Event("test_step", 10**6, 5 * 10**6), Event("", 3 * 10**6, 0)])
    assert profiling.summarize_profile([thread], 1, 1.0, (), False).kernel_s is None
    with pytest.raises(NotMeasured, match="CUPTI is missing or forbidden"):  # the host's work would stand for the GPUs'
        profiling.summarize_profile([thread], 1, 1.0, (), True)


@pytest.mark.parametrize("from_ns", [0, START_NS])
def test_lines_with_their_operations_and_times(from_ns):
    """Whether the lines count from the beginning of the recording or from the epoch themselves."""
    lines = profiling.parse_xspace(space(from_ns=from_ns))
    assert [(line.name, line.device, event.name, event.operation) for line in lines for event in line.events] == [
        ("tf_Compute/1", "cpu", "call/a:AddN", "call/a:AddN"),
        ("GPU 1 Stream #7(Compute)", "cuda", "void sum<f>(x)", "call/a:AddN"),
        ("xla", "cpu", "fusion.3", "fusion.3:fusion"),
        ("p", "cpu", "a b", ""),
    ]
    times = {(event.start_ps, event.duration_ps) for line in lines for event in line.events}
    assert times == {(START_NS * 1000 + 2 * 10**9, 10**9)}


SECOND = 10**12  # picoseconds


def thread(*events):
    """Name, start and length of each, in seconds."""
    return Line(
        "thread", "cpu", [event(name, start, length, name if ":" in name else "") for name, start, length in events]
    )


def event(name, start_s, length_s, operation):
    return Event(name, round(start_s * SECOND), round(length_s * SECOND), operation)


def stream(*events):
    """One kernel after the other: name, length, operation."""
    starts = [sum(length for _, length, _ in events[:number]) for number in range(len(events))]
    return Line("stream", "cuda", [event(n, s, t, op) for (n, t, op), s in zip(events, starts, strict=True)])


def sums(line, *sync_operations):
    found = {}
    for kind, own_s in recording.exclusive_times(
        line, partial(profiling.classify_event, sync_operations=sync_operations)
    ):
        found[tuple(kind)] = found.get(tuple(kind), 0.0) + own_s
    return found


def test_nested_and_adjacent_operations():
    """Each of three in one another; then two side by side in a third; other events do not count. Adjacent ones are
    not nested today, when a float of seconds tells times a quarter of a microsecond apart, and operations last less."""
    line = thread(
        ("a:Call", 0, 10), ("Process", 0.5, 9), ("b:While", 1, 6), ("c:Conv2D", 2, 3), ("d:Call", 20, 5),
        ("e:_MklNativeConv2D", 20, 1), ("f:Conv2D", 22, 2), ("SyncDevice:SyncDevice", 30, 5),
    )  # fmt: skip
    assert sums(line) == {("Call", False): 4 + 2, ("While", False): 3, ("Conv2D", False): 3 + 1 + 2}
    now_ps, length_ps = 1_795_000_000 * SECOND, 123_456
    events = [Event("a:MatMul", now_ps + at * length_ps, length_ps, "a:MatMul") for at in range(1000)]
    own = [own_s for _, own_s in recording.exclusive_times(Line("thread", "cpu", events), profiling.classify_event)]
    assert own == [length_ps / SECOND] * 1000


def test_collective_operations():
    line = thread(("call/add:AddN", 0, 2), ("other:AddN", 3, 1), ("x/y:CollectiveReduceV2", 5, 4), ("Collective", 5, 4))
    assert sums(line, "add") == {("AddN", True): 2, ("AddN", False): 1, ("CollectiveReduceV2", True): 4}
    kernels = stream(
        ("void tensorflow::AddN<float, 8>(int)", 1, "call/add:AddN"), ("tensorflow::AddN<float>(int)", 2, "o:AddN"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 4, ""), ("MemcpyP2P", 8, ""), ("MemcpyD2H", 16, ""),
    )  # fmt: skip
    assert sums(kernels, "add") == {
        ("tensorflow::AddN", True): 1, ("tensorflow::AddN", False): 2,
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", True): 4, ("MemcpyP2P", True): 8, ("MemcpyD2H", False): 16,
    }  # fmt: skip


def test_profile_of_threads_and_of_kernels():
    """Sums of all threads over the updates, the largest first. What threads of the host do for kernels of a GPU is not
    counted with them, nor once more. An unknown time of collectives is not 0, neither where there is none, nor where
    only the handing over to another library's thread is seen."""
    lines = [thread(("a:Conv2D", 0, 3), ("b:AddN", 4, 1)), thread(("c:Conv2D", 0, 3))]
    found = profiling.summarize_profile(lines, 2, 5.0, {"b"}, False)
    assert (found.steps, found.step_s, found.kernel_s, found.collective_s) == (2, 5.0, 3.5, 0.5)
    assert [(one.name, one.calls, one.self_s, one.collective) for one in found.operations] == [
        ("Conv2D", 1.0, 3.0, False), ("AddN", 0.5, 0.5, True),
    ]  # fmt: skip
    many = profiling.summarize_profile([thread(*((f"a:T{n}", 2 * n, 1) for n in range(30)))], 1, 1.0, set(), False)
    assert (len(many.operations), many.kernel_s) == (20, 30)
    lines = [thread(("a:Conv2D", 0, 9)), stream(("conv", 2, "a:Conv2D"))]
    found = profiling.summarize_profile(lines, 1, 3.0, set(), True)
    assert (found.kernel_s, [(one.name, one.device) for one in found.operations]) == (2, [("conv", "cuda")])
    for kind in ("Conv2D", "HorovodAllreduce"):
        found = profiling.summarize_profile([thread((f"a:{kind}", 0, 1))], 1, 1.0, set(), False)
        assert found.collective_s is None and found.operations[0].collective == (kind == "HorovodAllreduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["mirrored", "mirrored strategy.options.loop=fit", "mirrored_hierarchical", "multi_gpu_model"]
)
def test_a_profile_of_real_steps(strategy, source, tmp_path, monkeypatch, words):
    """Those of the updates, no more and no less; and the trace tells when they were."""
    monkeypatch.setattr(recording, "MAX_OPERATIONS", 10**6)
    one = strategy(*f"strategy={words}".split(), "gpus=2")
    run_training(one, source(), 1)
    start_s = time.time()
    found = one.profile(3, tmp_path / "trace.json.gz")
    lasted_s = time.time() - start_s
    calls = {(operation.name, operation.collective): operation.calls for operation in found.operations}
    assert calls["Conv2D", False] == calls["Conv2DBackpropFilter", False] == 4
    messages = len(one.message_sizes())
    if words in ("mirrored_hierarchical", "multi_gpu_model"):
        assert calls["AddN", True] == messages
    else:
        assert calls["CollectiveReduceV2", True] == 2 * messages == 2
    assert 0 < found.collective_s < found.kernel_s and 0 < found.step_s < lasted_s / 3
    carried = sum(operation.self_s for operation in found.operations if operation.collective)
    assert carried == pytest.approx(found.collective_s)
    check_trace(tmp_path / "trace.json.gz", start_s, lasted_s)


def check_trace(path, start_s, lasted_s):
    content = json.loads(gzip.decompress(path.read_bytes()))
    base_us, events = content["baseTimeNanoseconds"] / 1e3, content["traceEvents"]
    names = {event["name"]: event["args"]["name"] for event in events if event["ph"] == "M" and not event["tid"]}
    assert names == {"process_name": "rank 0"}
    shown = [event for event in events if event["ph"] == "X"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in shown} <= set(threads) and "python" in threads.values()
    assert {event["pid"] for event in events} == {os.getpid()}
    assert sum(event["name"].endswith("Conv2DBackpropFilter") for event in shown) == 12
    assert not any(event["name"].startswith("ThreadpoolListener") for event in shown)
    for event in shown:
        assert start_s * 1e6 < base_us + event["ts"]
        assert base_us + event["ts"] + event["dur"] < (start_s + lasted_s) * 1e6


def test_measured_steps_begin_after_a_warm_up_step():
    waits, steps = [], []

    def train(loop):
        for _ in loop:
            steps.append(time.time())
            if loop.done(None):
                break

    lines = [Line("thread", "cpu", [])]
    found, step_s = recording.profile_steps(
        train, "batch", 3, lambda: nullcontext(lines), lambda: waits.append(len(steps))
    )
    assert (len(steps), waits, found) == (4, [1, 4], lines) and 0 < step_s < 1


def test_bare_has_no_collective_time(strategy, source):
    one = strategy("strategy=bare_tensorflow", "gpus=1")
    with pytest.raises(RuntimeError, match="there was no training"):
        one.profile(1, None)
    for batch in islice(one.feed(source()), 1):
        one.step(batch)
    found = one.profile(2, None)
    assert found.collective_s is None and found.kernel_s > 0
    assert {operation.device for operation in found.operations} == {"cpu"}


def test_the_compiler_is_observed():
    for jit in (False, True):
        inner = tf.function(lambda x: tf.matmul(x, x), jit_compile=jit)
        outer = tf.function(lambda x, inner=inner: inner(x)).get_concrete_function(tf.TensorSpec([3, 3]))
        wanted = {"compiler": "xla" if jit else "none", "precision": "float32"}
        assert profiling.settings_used(outer, "/CPU:0", True) == wanted
    for event, expected in (("add:AddN", True), ("call/add:AddN", True), ("badd:AddN", False), ("add_1:AddN", False)):
        assert profiling.is_event_of(event, "add") is expected


def test_all_reduce_adds_up_over_the_devices_at_each_call():
    strategy = mirrored(DEVICES)
    alone = ReplicaCollective(strategy, "all_reduce", [8, 20, 0])
    of = strategy.experimental_distribute_values_from_function
    alone.buffers = [
        of(lambda own, zeros=each.values[0]: zeros + own.replica_id_in_sync_group) for each in alone.buffers
    ]
    for size, of_devices in zip((2, 5, 1), alone.run(alone.buffers), strict=True):
        assert [part.numpy().tolist() for part in of_devices] == [[1.0] * size] * 2
    for _ in range(2):
        with profiling.record_lines() as lines:
            alone()
        assert any("CollectiveReduce" in event.name for line in lines for event in line.events)
