"""The ranks' Chrome traces as one, which opens in chrome://tracing or Perfetto. Layer 0.

Every rank's times are by the clock of its own machine, and are moved by how far that is from the clock of rank 0's.
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

# What a file that was cut short or damaged raises.
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
PROCESS_FACTS = ("process_name", "process_sort_index")  # written anew
NAMING = (*PROCESS_FACTS, "process_labels")

Event = dict[str, Any]


def merge(folder: Path, offsets_s: Mapping[int, float] | None = None) -> list[int]:
    """Make trace.json.gz of the ranks' trace<k>.json.gz in `folder`, remove those, and return the merged ranks.

    `offsets_s`: by rank, its machine's clock minus that of rank 0's, where they differ (RankRecord.clock_offset_s).
    `ts` becomes microseconds since the earliest event of all. The file of a rank that cannot be read stays, and is
    not among those returned; without a readable one nothing is written. OSError when the folder is full or not
    writable: then nothing has changed.
    """
    offsets_ns = {rank: round(offset_s * 1e9) for rank, offset_s in (offsets_s or {}).items()}
    found = rank_traces(folder)
    begins: dict[int, int | None] = {}
    for rank in found:
        with contextlib.suppress(*UNREADABLE):
            begins[rank] = _begin_ns(*_read(found[rank], offsets_ns.get(rank, 0)))
    if not begins:
        return []
    numbers = _Numbers(min((begin for begin in begins.values() if begin is not None), default=0))
    temporary = folder / f".{MERGED_TRACE_FILE}.{os.getpid()}"
    try:
        with gzip.open(temporary, "wt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            gap = "\n"
            for rank in begins:  # read again: a trace may be large, and one at a time has to fit into memory
                for event in numbers.renumbered(rank, *_read(found[rank], offsets_ns.get(rank, 0))):
                    file.write(gap + json.dumps(event, allow_nan=False))
                    gap = ",\n"
            file.write("\n]}\n")
        os.replace(temporary, folder / MERGED_TRACE_FILE)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for rank in begins:
        with contextlib.suppress(OSError):  # a file too much does no harm
            found[rank].unlink()
    return list(begins)


def _read(path: Path, offset_ns: int) -> tuple[list[Event], int]:
    """(events, what their `ts` counts from in nanoseconds since the epoch by the clock of rank 0's machine). One of
    UNREADABLE for a damaged file.

    `baseTimeNanoseconds` is PyTorch's: with it times of day keep the nanoseconds that a float has no room for.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content = json.load(file, parse_constant=lambda constant: None)  # NaN is no JSON, and Perfetto takes none
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path} is no Chrome trace")
    base = content.get("baseTimeNanoseconds", 0)
    return events, (base if isinstance(base, int) else 0) - offset_ns


def _begin_ns(events: list[Event], base_ns: int) -> int | None:
    return min((_ns(event["ts"], base_ns) for event in events if _timed(event)), default=None)


def _timed(event: Event) -> bool:
    return event.get("ph") != "M" and isinstance(event.get("ts"), (int, float))


def _ns(ts_us: float, base_ns: int) -> int:
    """Nanoseconds since the epoch. Whole numbers: a float holds a time of day to a quarter of a microsecond."""
    whole = int(ts_us // 1)
    return base_ns + whole * 1000 + round((ts_us - whole) * 1000)


@dataclass
class _Numbers:
    """Gives processes and events that belong together numbers that no other rank has."""

    begin_ns: int
    _pids: Iterator[int] = field(default_factory=lambda: count(1))  # 0 is the idle process to Perfetto
    _ids: Iterator[int] = field(default_factory=lambda: count(1))  # as text Perfetto would take them for hexadecimal

    def renumbered(self, rank: int, events: list[Event], base_ns: int) -> Iterator[Event]:
        """Yield the events of one rank, its processes first. A process is left out that has a name and nothing else."""
        facts = {kind: {_key(e.get("pid")): _fact(e) for e in events if e.get("name") == kind} for kind in NAMING}
        alive = dict.fromkeys(_key(e.get("pid")) for e in events if e.get("ph") != "M")
        order = facts["process_sort_index"]
        pids = {key: next(self._pids) for key in sorted(alive, key=lambda key: _number(order.get(key)))}
        for key, pid in pids.items():
            own = facts["process_labels"].get(key) or facts["process_name"].get(key) or key[1]
            name = f"rank {rank}: {own}" if own and len(pids) > 1 else f"rank {rank}"
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        ids: dict[Any, int] = {}
        for event in events:
            key = _key(event.get("pid"))
            if key in pids and not (event.get("ph") == "M" and event.get("name") in PROCESS_FACTS):
                yield self._placed(event, pids[key], ids, base_ns)

    def _placed(self, event: Event, pid: int, ids: dict[Any, int], base_ns: int) -> Event:
        placed = {**event, "pid": pid}
        if _timed(event):
            placed["ts"] = (_ns(event["ts"], base_ns) - self.begin_ns) / 1000
        else:
            placed.pop("ts", None)
        for name in ("id", "bind_id"):
            if name in event:
                placed[name] = self._id(event[name], ids)
        if isinstance(event.get("id2"), dict):
            placed["id2"] = {scope: hex(self._id(one, ids)) for scope, one in event["id2"].items()}
        return placed

    def _id(self, one: Any, ids: dict[Any, int]) -> int:
        key = _key(one)
        if key not in ids:
            ids[key] = next(self._ids)
        return ids[key]


def _key(name: Any) -> tuple[str, str]:
    """7 and "7" are two names, and a list is none that a dictionary takes."""
    return type(name).__name__, str(name)


def _fact(event: Event) -> Any:
    """The one value of a metadata event."""
    args = event.get("args")
    return next(iter(args.values()), None) if isinstance(args, dict) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.inf  # behind those that have one
