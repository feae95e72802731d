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
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
            events, base_ns = _read(paths[rank], offsets_ns.get(rank, 0))
            begins[rank] = min((_ns(event["ts"], base_ns) for event in events if _is_timed(event)), default=None)
    if not begins:
        return []
    begin_ns, counts = min((begin for begin in begins.values() if begin is not None), default=0), count(1)
    numbers: defaultdict[Any, int] = defaultdict(lambda: next(counts))  # for Perfetto process 0 is the idle one
    temporary = folder / f".{MERGED_TRACE_FILE}.{os.getpid()}"
    try:
        with gzip.open(temporary, "wt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            separator = "\n"
            for rank in begins:  # read again: a trace may be large, and one at a time has to fit into memory
                events, base_ns = _read(paths[rank], offsets_ns.get(rank, 0))
                for event in _renumber(rank, events, base_ns, begin_ns, numbers):
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


def _is_timed(event: TraceEvent) -> bool:
    return event.get("ph") != "M" and isinstance(event.get("ts"), (int, float))


def _ns(ts_us: float, base_ns: int) -> int:
    """Return nanoseconds since the epoch, as an integer: a float holds a time of day only to a quarter of a
    microsecond."""
    integer_us = int(ts_us // 1)
    return base_ns + integer_us * 1000 + round((ts_us - integer_us) * 1000)


def _renumber(
    rank: int, events: list[TraceEvent], base_ns: int, begin_ns: int, numbers: defaultdict[Any, int]
) -> Iterator[TraceEvent]:
    """Yield the events of one rank, its processes first, with `numbers` for processes and ids, so that those of
    different ranks differ and related ones stay equal. A process that has nothing but a name is left out."""
    facts: dict[str, dict[Any, Any]] = {kind: {} for kind in NAMING_EVENTS}
    for event in events:
        if event.get("name") in NAMING_EVENTS:
            args = event.get("args")  # of one value
            value = next(iter(args.values()), None) if isinstance(args, dict) else None
            facts[event["name"]][_key(event.get("pid"))] = value

    def place(key: Any) -> float:
        index = facts["process_sort_index"].get(key)
        return float(index) if isinstance(index, (int, float)) else math.inf  # after those that have one

    alive = dict.fromkeys(_key(event.get("pid")) for event in events if event.get("ph") != "M")
    pids = {key: numbers["process", rank, key] for key in sorted(alive, key=place)}
    for key, pid in pids.items():
        label = facts["process_labels"].get(key) or facts["process_name"].get(key) or key[1]
        name = f"rank {rank}: {label}" if label and len(pids) > 1 else f"rank {rank}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for event in events:
        key = _key(event.get("pid"))
        if key not in pids or (event.get("ph") == "M" and event.get("name") in REWRITTEN_EVENTS):
            continue
        moved = {**event, "pid": pids[key]}
        moved |= {name: numbers["id", rank, _key(event[name])] for name in ("id", "bind_id") if name in event}
        if isinstance(event.get("id2"), dict):  # Perfetto reads text as hexadecimal
            moved["id2"] = {name: hex(numbers["id", rank, _key(value)]) for name, value in event["id2"].items()}
        if _is_timed(event):
            moved["ts"] = (_ns(event["ts"], base_ns) - begin_ns) / 1000
        else:
            moved.pop("ts", None)
        yield moved


def _key(value: Any) -> tuple[str, str]:
    """Return a dictionary key for an id: 7 and "7" are different ids, and an id may be a list."""
    return type(value).__name__, str(value)
