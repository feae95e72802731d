"""Reading Horovod's timeline, on events like those that Horovod 0.28.1 writes, with times that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.strategies.horovod import timeline
from scalebench.strategies.horovod.timeline import CARRIERS, PHASES, union_length

SHAPES = {"weight": "[100, 100]", "bias": "[100]"}
UPDATE_S = 1.0
MICRO = 1_000_000


def update(start_s: float, carrier: str, fused: bool) -> list[dict[str, Any]]:
    """One update: 0.1 s of negotiation, 0.02 s of copying in and out where fused, 0.2 s of all-reduce each message."""
    found: list[dict[str, Any]] = []

    def at(after_s: float, pids: list[int], ph: str, name: str | None = None) -> None:
        for pid in pids:
            event = {"ph": ph, "ts": round((start_s + after_s) * MICRO), "pid": pid}
            found.append(event if name is None else {**event, "name": name})

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
            found[-1]["args"] = {"dtype": "float32", "shape": SHAPES[NAMES[pid]]}
    return found


NAMES = {1: "weight", 2: "bias"}
HEAD = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}},
    {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
    *({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in NAMES.items()),
]


def events(updates: int, carrier: str = "GLOO_ALLREDUCE", last_fused: bool = True) -> list[dict[str, Any]]:
    """Updates of which the first takes ten times as long to negotiate and fuses nothing."""
    found = list(HEAD)
    for number in range(updates):
        fused = number > 0 and (last_fused or number < updates - 1)
        found += update(number * UPDATE_S + (0 if number else -5.0), carrier, fused)
    return found


@pytest.mark.parametrize(("carrier", "backend"), CARRIERS.items())
def test_what_carried_the_messages(carrier: str, backend: str) -> None:
    assert timeline.parse(events(3, carrier)).backend() == backend


def test_adasum_holds_a_plain_all_reduce() -> None:
    """One message, and not two, although both of its names are carriers'."""
    found = []
    for event in events(3, "MPI_ADASUM_ALLREDUCE"):
        found.append(event)
        if event.get("name") == "MPI_ADASUM_ALLREDUCE":
            found += [{**event, "name": "MPI_ALLREDUCE"}, {"ph": "E", "ts": event["ts"] + 1, "pid": event["pid"]}]
    assert timeline.parse(found).message_bytes() == [40_400]


def test_two_carriers_are_both_told() -> None:
    both = events(2, "MPI_ALLREDUCE") + update(9.0, "NCCL_ALLREDUCE", True)
    assert timeline.parse(both).backend() == "mpi+nccl"


def test_a_timeline_without_an_exchange() -> None:
    found = timeline.parse(HEAD)
    assert (found.backend(), found.message_bytes(), found.phases_s(3)) == (None, [], dict.fromkeys(PHASES, 0.0))


def test_messages_are_those_of_the_last_update() -> None:
    assert timeline.parse(events(3)).message_bytes() == [40_400]
    assert timeline.parse(events(3, last_fused=False)).message_bytes() == [40_000, 400]
    assert timeline.parse(events(1)).message_bytes() == [40_000, 400]


def test_phases_of_an_update_without_the_first() -> None:
    found = timeline.parse(events(5)).phases_s(5)
    assert found == pytest.approx({"negotiate_s": 0.1, "queue_s": 0.0, "memcpy_s": 0.02, "allreduce_s": 0.2})


def test_what_an_earlier_timeline_left_is_passed_over() -> None:
    """Horovod writes events that were waiting when it stopped into the next file."""
    left = [{"ph": "E", "ts": 1, "pid": 1}, {"ph": "E", "ts": 2, "pid": 1, "args": {}}]
    assert timeline.parse(HEAD + left + events(3)[len(HEAD) :]) == timeline.parse(events(3))


def test_half_precision_is_half_as_long() -> None:
    text = json.dumps(events(3)).replace("float32", "float16")
    assert timeline.parse(json.loads(text)).message_bytes() == [20_200]


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"ph": "B"'])
def test_files_that_are_no_timeline(text: str, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        timeline.read(path)


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair))))


@given(spans)
def test_union_of_spans(pairs: list[tuple[int, int]]) -> None:
    """Against counting the unit intervals that are covered."""
    covered = {unit for begin, end in pairs for unit in range(begin, end)}
    assert union_length([(float(a), float(b)) for a, b in pairs]) == len(covered)
