"""Reading Horovod's timeline: events as Horovod 0.28.1 writes them, with chosen times."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("horovod", reason="Horovod is not installed; make horovod")

from scalebench.strategies.horovod import timeline
from scalebench.strategies.horovod.timeline import CARRIER_BACKENDS, PHASES, union_length

SHAPES = {"weight": "[100, 100]", "bias": "[100]"}
STEP_S = 1.0
MICRO = 1_000_000


def step_events(start_s, carrier, fused):
    """Return the events of a step: 0.1 s negotiation, 0.02 s copies if fused, and 0.2 s all-reduce per message."""
    actual = []

    def at(after_s, pids, ph, name=None):
        for pid in pids:
            event = {"ph": ph, "ts": round((start_s + after_s) * MICRO), "pid": pid}
            actual.append(event if name is None else {**event, "name": name})

    at(0.0, [1, 2], "B", "NEGOTIATE_ALLREDUCE")
    at(0.0, [1], "X", "0")
    at(0.1, [1, 2], "E")
    groups = [[1, 2]] if fused else [[1], [2]]
    for number, pids in enumerate(groups):
        begin_s = 0.1 + 0.3 * number
        at(begin_s, pids, "B", "ALLREDUCE")
        if fused:
            at(begin_s, pids, "B", "MEMCPY_IN_FUSION_BUFFER")
            at(begin_s + 0.02, pids, "E")
        at(begin_s + 0.02, pids, "B", carrier)
        at(begin_s + 0.22, pids, "E")
        for pid in pids:
            at(begin_s + 0.25, [pid], "E")
            actual[-1]["args"] = {"dtype": "float32", "shape": SHAPES[NAMES[pid]]}
    return actual


NAMES = {1: "weight", 2: "bias"}
HEAD = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}},
    {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
    *({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in NAMES.items()),
]


def events(steps, carrier="GLOO_ALLREDUCE", last_fused=True):
    """Return the events of some steps; the first one negotiates ten times as long and fuses nothing."""
    actual = list(HEAD)
    for number in range(steps):
        fused = number > 0 and (last_fused or number < steps - 1)
        actual += step_events(number * STEP_S + (0 if number else -5.0), carrier, fused)
    return actual


def test_the_backend_of_the_messages():
    for carrier, backend in CARRIER_BACKENDS.items():
        assert timeline.parse_timeline(events(3, carrier)).backend() == backend
    both = events(2, "MPI_ALLREDUCE") + step_events(9.0, "NCCL_ALLREDUCE", True)
    assert timeline.parse_timeline(both).backend() == "mpi+nccl"
    none = timeline.parse_timeline(HEAD)
    assert (none.backend(), none.message_bytes(), none.phases_s(3)) == (None, [], dict.fromkeys(PHASES, 0.0))


def test_adasums_inner_all_reduce_is_no_message():
    """It is one message and not two, although both operations send."""
    actual = []
    for event in events(3, "MPI_ADASUM_ALLREDUCE"):
        actual.append(event)
        if event.get("name") == "MPI_ADASUM_ALLREDUCE":
            actual += [{**event, "name": "MPI_ALLREDUCE"}, {"ph": "E", "ts": event["ts"] + 1, "pid": event["pid"]}]
    assert timeline.parse_timeline(actual).message_bytes() == [40_400]


@pytest.mark.gpu
def test_a_hierarchical_all_reduce_is_one_message():
    """NCCL within the nodes, then MPI between them: it is NCCL's message, and its seconds reach to the last part."""
    actual, sending = [], set()
    for event in events(3, "NCCL_REDUCESCATTER"):
        actual.append(event)
        if event["ph"] == "B" and event["name"] == "NCCL_REDUCESCATTER":
            sending.add(event["pid"])
        elif event["ph"] == "E" and event["pid"] in sending:
            sending.remove(event["pid"])
            begin = event["ts"]
            for number, name in enumerate(["MPI_ALLREDUCE", "NCCL_ALLGATHER"]):
                actual.append({**event, "ph": "B", "name": name, "ts": begin + 10_000 * number})
                actual.append({**event, "ts": begin + 10_000 * (number + 1)})
    parsed = timeline.parse_timeline(actual)
    assert (parsed.backend(), parsed.message_bytes()) == ("nccl", [40_400])
    assert parsed.phases_s(3)["allreduce_s"] == pytest.approx(0.22)


RECORDINGS = Path(__file__).parents[2] / "golden" / "recordings"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "message_bytes", "phases_us"),
    [
        ("horovod_nccl_fused", [2600], {"negotiate_s": 100, "queue_s": 50, "memcpy_s": 30, "allreduce_s": 200}),
        ("horovod_nccl_unfused", [2560, 40], {"negotiate_s": 100, "queue_s": 214, "memcpy_s": 0, "allreduce_s": 251}),
        ("horovod_hierarchical", [2600], {"negotiate_s": 100, "queue_s": 20, "memcpy_s": 90, "allreduce_s": 480}),
    ],
)
def test_timelines_of_gpus(name, message_bytes, phases_us):
    parsed = timeline.read_timeline(RECORDINGS / f"{name}.json")
    assert (parsed.backend(), parsed.message_bytes()) == ("nccl", message_bytes)
    assert {key: round(seconds * 1e6) for key, seconds in parsed.phases_s(2).items()} == phases_us


def test_messages_are_those_of_the_last_step():
    """Phases leave out the first step. Events that were pending when Horovod stopped are in the next file."""
    assert timeline.parse_timeline(events(3)).message_bytes() == [40_400]
    assert timeline.parse_timeline(events(3, last_fused=False)).message_bytes() == [40_000, 400]
    assert timeline.parse_timeline(events(1)).message_bytes() == [40_000, 400]
    phases = {"negotiate_s": 0.1, "queue_s": 0.0, "memcpy_s": 0.02, "allreduce_s": 0.2}
    assert timeline.parse_timeline(events(5)).phases_s(5) == pytest.approx(phases)
    left = [{"ph": "E", "ts": 1, "pid": 1}, {"ph": "E", "ts": 2, "pid": 1, "args": {}}]
    assert timeline.parse_timeline(HEAD + left + events(3)[len(HEAD) :]) == timeline.parse_timeline(events(3))


def test_tensors_of_any_type_have_a_size():
    """The indices of sparse gradients are int64."""
    sizes = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int64": 8, "uint8": 1, "bool": 1}
    for dtype, size_bytes in sizes.items():
        args = {"dtype": dtype, "shape": "[2, 5]"}
        sent = [{"ph": "B", "ts": 1, "pid": 1, "name": "GLOO_ALLREDUCE"}, {"ph": "E", "ts": 2, "pid": 1, "args": args}]
        assert timeline.parse_timeline([*HEAD, *sent]).message_bytes() == [10 * size_bytes]


def test_other_files_are_no_timeline(tmp_path):
    path = tmp_path / "timeline.json"
    for text in ("", "[", "{}", '[{"ph": "B"'):
        path.write_text(text)
        with pytest.raises(ValueError):
            timeline.read_timeline(path)


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair))))


@given(spans)
def test_union_of_spans(pairs):
    """Compare with the number of covered unit intervals."""
    covered = {unit for begin, end in pairs for unit in range(begin, end)}
    assert union_length([(float(a), float(b)) for a, b in pairs]) == len(covered)
