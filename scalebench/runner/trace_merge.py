"""Merges the traces of all ranks into one, which opens in chrome://tracing or Perfetto.

Every rank's times are by the clock of its own machine, and are shifted by the offset of that clock from rank 0's.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from scalebench.core.run_folder import MERGED_TRACE_FILE, rank_traces

# Raised for an incomplete or damaged file.
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
REWRITTEN_EVENTS = ("process_name", "process_sort_index")  # written again for the merged trace
NAMING_EVENTS = (*REWRITTEN_EVENTS, "process_labels")

TraceEvent = dict[str, Any]


def merge_traces(folder: Path, offsets_s: Mapping[int, float] | None = None) -> list[int]:
    """Make trace.json.gz of the ranks' trace<k>.json.gz in `folder`, remove those, and return the merged ranks.

    `offsets_s`: for each rank, its machine's clock minus rank 0's, where they differ (RankRecord.clock_offset_s). `ts`
    becomes microseconds since the earliest event of all ranks. The file of a rank that cannot be read stays, and that
    rank is not returned; without a readable file nothing is written. OSError when the folder is full or not writable:
    then nothing has changed.
    """
    offsets_ns = {rank: round(offset_s * 1e9) for rank, offset_s in (offsets_s or {}).items()}
    paths = rank_traces(folder)
    begins: dict[int, int | None] = {}
    for rank in paths:
        with contextlib.suppress(*UNREADABLE):
            begins[rank] = _begin_ns(*_read(paths[rank], offsets_ns.get(rank, 0)))
    if not begins:
        return []
    id_mapper = _IdMapper(min((begin for begin in begins.values() if begin is not None), default=0))
    temporary = folder / f".{MERGED_TRACE_FILE}.{os.getpid()}"
    try:
        with gzip.open(temporary, "wt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            separator = "\n"
            for rank in begins:  # read again: a trace may be large, and one at a time has to fit into memory
                for event in id_mapper.renumber(rank, *_read(paths[rank], offsets_ns.get(rank, 0))):
                    file.write(separator + json.dumps(event, allow_nan=False))
                    separator = ",\n"
            file.write("\n]}\n")
        os.replace(temporary, folder / MERGED_TRACE_FILE)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for rank in begins:
        with contextlib.suppress(OSError):  # a file that stays does no harm
            paths[rank].unlink()
    return list(begins)


def _read(path: Path, offset_ns: int) -> tuple[list[TraceEvent], int]:
    """Return the events of a trace, and the zero of their `ts` in nanoseconds since the epoch, by the clock of rank 0's
    machine. Raise one of UNREADABLE for a damaged file.

    `baseTimeNanoseconds` is PyTorch's: with it times of day keep the nanoseconds that a float cannot hold.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content = json.load(file, parse_constant=lambda constant: None)  # NaN is not JSON, and Perfetto rejects it
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path} is no Chrome trace")
    base = content.get("baseTimeNanoseconds", 0)
    return events, (base if isinstance(base, int) else 0) - offset_ns


def _begin_ns(events: list[TraceEvent], base_ns: int) -> int | None:
    return min((_ns(event["ts"], base_ns) for event in events if _is_timed(event)), default=None)


def _is_timed(event: TraceEvent) -> bool:
    return event.get("ph") != "M" and isinstance(event.get("ts"), (int, float))


def _ns(ts_us: float, base_ns: int) -> int:
    """Return nanoseconds since the epoch, as an integer: a float holds a time of day only to a quarter of a
    microsecond."""
    integer_us = int(ts_us // 1)
    return base_ns + integer_us * 1000 + round((ts_us - integer_us) * 1000)


@dataclass
class _IdMapper:
    """Renumbers processes and events, so that ids of different ranks differ and related ones stay equal."""

    begin_ns: int
    _pids: Iterator[int] = field(default_factory=lambda: count(1))  # for Perfetto 0 is the idle process
    _ids: Iterator[int] = field(default_factory=lambda: count(1))  # Perfetto reads text as hexadecimal

    def renumber(self, rank: int, events: list[TraceEvent], base_ns: int) -> Iterator[TraceEvent]:
        """Yield the events of one rank, its processes first. A process that has nothing but a name is left out."""
        facts = {
            kind: {_key(e.get("pid")): _metadata_value(e) for e in events if e.get("name") == kind}
            for kind in NAMING_EVENTS
        }
        alive = dict.fromkeys(_key(e.get("pid")) for e in events if e.get("ph") != "M")
        order = facts["process_sort_index"]
        pids = {key: next(self._pids) for key in sorted(alive, key=lambda key: _sort_index(order.get(key)))}
        for key, pid in pids.items():
            label = facts["process_labels"].get(key) or facts["process_name"].get(key) or key[1]
            name = f"rank {rank}: {label}" if label and len(pids) > 1 else f"rank {rank}"
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        ids: dict[Any, int] = {}
        for event in events:
            key = _key(event.get("pid"))
            if key in pids and not (event.get("ph") == "M" and event.get("name") in REWRITTEN_EVENTS):
                yield self._move_event(event, pids[key], ids, base_ns)

    def _move_event(self, event: TraceEvent, pid: int, ids: dict[Any, int], base_ns: int) -> TraceEvent:
        moved = {**event, "pid": pid}
        if _is_timed(event):
            moved["ts"] = (_ns(event["ts"], base_ns) - self.begin_ns) / 1000
        else:
            moved.pop("ts", None)
        for name in ("id", "bind_id"):
            if name in event:
                moved[name] = self._id(event[name], ids)
        if isinstance(event.get("id2"), dict):
            moved["id2"] = {scope: hex(self._id(value, ids)) for scope, value in event["id2"].items()}
        return moved

    def _id(self, value: Any, ids: dict[Any, int]) -> int:
        key = _key(value)
        if key not in ids:
            ids[key] = next(self._ids)
        return ids[key]


def _key(value: Any) -> tuple[str, str]:
    """Return a dictionary key for an id: 7 and "7" are different ids, and an id may be a list."""
    return type(value).__name__, str(value)


def _metadata_value(event: TraceEvent) -> Any:
    """Return the only value of a metadata event."""
    args = event.get("args")
    return next(iter(args.values()), None) if isinstance(args, dict) else None


def _sort_index(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.inf  # after those that have one
