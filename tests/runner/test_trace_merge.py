"""The traces of all ranks as one: on one clock, with all events, and with separate processes and arrows."""

import gzip
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.run_folder import MERGED_TRACE_FILE
from scalebench.runner import trace_merge
from scalebench.runner.trace_merge import merge_traces

NOON_US = 1_767_268_800_000_000  # of a day in 2026, microseconds since the epoch


def slice_(name, ts, pid=7, tid=1, **more):
    return {"ph": "X", "name": name, "ts": ts, "dur": 5.25, "pid": pid, "tid": tid, **more}


def fact(kind, value, pid=7, tid=0):
    key = {"process_labels": "labels", "process_sort_index": "sort_index"}.get(kind, "name")
    return {"ph": "M", "name": kind, "ts": 0, "pid": pid, "tid": tid, "args": {key: value}}


def write_trace(folder, rank, events, **more):
    path = folder / f"trace{rank}.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events, **more}).encode()))
    return path


def read_merged(folder):
    """All events of the merged file, which has to be JSON without NaN."""

    def refuse(constant):
        raise AssertionError(constant)

    with gzip.open(folder / MERGED_TRACE_FILE, "rt", encoding="utf-8") as file:
        content = json.load(file, parse_constant=refuse)
    assert isinstance(content["traceEvents"], list)
    return list(content["traceEvents"])


def events_by_name(folder):
    return {event["name"]: event for event in read_merged(folder) if event["ph"] != "M"}


def names(folder, kind="process_name"):
    return {event["pid"]: next(iter(event["args"].values())) for event in read_merged(folder) if event["name"] == kind}


def test_clock_offsets_are_corrected(tmp_path):
    """The clock of rank 1 is two seconds ahead, rank 2's an hour behind."""
    write_trace(tmp_path, 0, [slice_("early", NOON_US - 1000.5), slice_("on_0", NOON_US + 0.25)])
    write_trace(tmp_path, 1, [slice_("on_1", NOON_US + 2e6 + 0.25, args={"occupancy": float("nan")})])
    write_trace(tmp_path, 2, [slice_("late", -3600e6 + 20.0)], baseTimeNanoseconds=NOON_US * 1000)
    assert merge_traces(tmp_path, {1: 2.0, 2: -3600.0}) == [0, 1, 2]
    assert os.listdir(tmp_path) == [MERGED_TRACE_FILE]
    events = events_by_name(tmp_path)
    at = {name: event["ts"] for name, event in events.items()}
    assert at == {"early": 0.0, "on_0": 1000.75, "on_1": 1000.75, "late": 1020.5}
    assert events["on_1"]["args"] == {"occupancy": None}, "JSON has no NaN"


def test_a_base_keeps_the_nanoseconds(tmp_path):
    write_trace(tmp_path, 0, [slice_("a", 10.001), slice_("b", 10.002)], baseTimeNanoseconds=NOON_US * 1000 + 1)
    write_trace(tmp_path, 1, [slice_("c", 20.0)], baseTimeNanoseconds=NOON_US * 1000)
    merge_traces(tmp_path)
    assert {name: event["ts"] for name, event in events_by_name(tmp_path).items()} == {"a": 0.0, "b": 0.001, "c": 9.998}


def test_processes_are_separate_and_named(tmp_path):
    """Two ranks with the same process id, as in two containers; the first has a GPU, which counts as a process."""
    gpu = [fact("process_name", "python", 0), fact("process_labels", "GPU 0", 0), fact("process_sort_index", 4, 0)]
    gpu.append(slice_("kernel", NOON_US, pid=0))
    idle = [fact("process_name", "python", 1), fact("process_labels", "GPU 1", 1)]
    cpu = [fact("process_sort_index", 3), fact("process_name", "python"), slice_("step", NOON_US)]
    write_trace(tmp_path, 0, [slice_("span", NOON_US, pid="7"), slice_("nameless", NOON_US, pid=""), *gpu, *idle, *cpu])
    write_trace(tmp_path, 1, [slice_("other", NOON_US), fact("thread_name", "autograd", tid=1)])
    merge_traces(tmp_path)
    pids = {name: event["pid"] for name, event in events_by_name(tmp_path).items()}
    assert pids == {"span": 1, "nameless": 2, "kernel": 3, "step": 4, "other": 5}
    assert names(tmp_path) == {1: "rank 0: 7", 2: "rank 0", 3: "rank 0: python", 4: "rank 0: python", 5: "rank 1"}
    assert (names(tmp_path, "process_labels"), names(tmp_path, "process_sort_index")) == ({3: "GPU 0"}, {})
    assert names(tmp_path, "thread_name") == {5: "autograd"}
    assert not any("ts" in event for event in read_merged(tmp_path) if event["ph"] == "M")


@pytest.mark.parametrize("content", [
    b"",
    b"no gzip",
    gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9],
    gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 99,
    gzip.compress(b'{"traceEvents": [{"ph": "X", "na', mtime=0),
    gzip.compress(b"\xff\xfe", mtime=0),
    gzip.compress(b'{"traceEvents": 3}', mtime=0),
    gzip.compress(b'{"traceEvents": [3]}', mtime=0),
    gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1e999}]}', mtime=0),
    gzip.compress(b"[]", mtime=0),
])  # fmt: skip
def test_a_broken_file_is_skipped_and_stays(tmp_path, content):
    (tmp_path / "trace0.json.gz").write_bytes(content)
    assert merge_traces(tmp_path) == []
    assert os.listdir(tmp_path) == ["trace0.json.gz"]
    write_trace(tmp_path, 2, [slice_("complete", NOON_US)])
    assert merge_traces(tmp_path) == [2]
    assert sorted(os.listdir(tmp_path)) == [MERGED_TRACE_FILE, "trace0.json.gz"]
    assert list(events_by_name(tmp_path)) == ["complete"]


def test_a_full_folder_keeps_its_files(tmp_path, monkeypatch):
    write_trace(tmp_path, 0, [slice_("a", NOON_US)])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_merge.os, "replace", full)
    with pytest.raises(OSError):
        merge_traces(tmp_path)
    assert os.listdir(tmp_path) == ["trace0.json.gz"]


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.sampled_from("XisfbeC"),
            "name": st.text(max_size=3),
            "ts": st.integers(0, 4 * 10**6).map(lambda quarters: NOON_US + quarters / 4),
            "pid": st.sampled_from([0, 1, "0", "Spans"]),
            "tid": st.integers(0, 2),
        },
        optional={
            **dict.fromkeys(("id", "bind_id"), st.sampled_from([0, 1, "1", "0x1"])),
            "args": st.dictionaries(st.text(max_size=2), st.none()),
        },
    ),
    max_size=6,
)


@given(ranks=st.lists(EVENTS, min_size=1, max_size=3))
def test_no_event_is_lost_or_changed(ranks):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, events in enumerate(ranks):
            write_trace(folder, rank, events)
        assert merge_traces(folder) == list(range(len(ranks)))
        merged_events = [event for event in read_merged(folder) if event["ph"] != "M"]
    original = [(rank, event) for rank, events in enumerate(ranks) for event in events]
    assert len(merged_events) == len(original)
    begin = min((event["ts"] for _, event in original), default=0)
    for (_, event), new in zip(original, merged_events, strict=True):
        assert new["ts"] == event["ts"] - begin
        others = dict.fromkeys(("ts", "pid", "id", "bind_id"), 0)
        assert new | others == event | others
    both = list(zip(original, merged_events, strict=True))
    for keys in (("pid",), ("id", "bind_id")):  # which bind to each other
        pairs = {((rank, repr(e[key])), n[key]) for (rank, e), n in both for key in keys if key in e}
        assert all(isinstance(number, int) for _, number in pairs), "Perfetto reads text as hexadecimal"
        for side in (0, 1):
            assert max(Counter(pair[side] for pair in pairs).values(), default=1) == 1
