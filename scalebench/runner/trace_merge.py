"""Merges the traces of all ranks into one, which opens in chrome://tracing or Perfetto.

Every rank's times are by the clock of its own machine, and are shifted by the offset of that clock from rank 0's.
"""

from __future__ import annotations

import contextlib
import gzip
import json
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
REWRITTEN_EVENTS = ("process_name", "process_sort_index")  # the former is written again, and ranks come in order

TraceEvent = dict[str, Any]


def merge_traces(folder: Path, offsets_s: Mapping[int, float] | None = None) -> list[int]:
    """Make trace.json.gz of the ranks' trace<k>.json.gz in `folder`, remove those, and return the merged ranks.

    `offsets_s`: for each rank, its machine's clock minus rank 0's, where they differ (RankRecord.clock_offset_s). `ts`
    becomes microseconds since the earliest event of all ranks. The file of a rank that cannot be read stays, and that
    rank is not returned; without a readable file nothing is written. OSError when the folder is full or not writable:
    then nothing has changed.
    """
    paths, begins = rank_traces(folder), {}
    for rank, path in paths.items():
        with contextlib.suppress(*UNREADABLE):
            events, base_ns = _read(path)
            base_ns -= round((offsets_s or {}).get(rank, 0.0) * 1e9)
            times_us = [event["ts"] for event in events if _is_timed(event)]
            # In whole nanoseconds: a float holds a time of day only to a quarter of a microsecond.
            begins[rank] = base_ns, base_ns + _to_ns(min(times_us)) if times_us else None
    if not begins:
        return []
    begin_ns = min((first_ns for _, first_ns in begins.values() if first_ns is not None), default=0)
    numbers: defaultdict[Any, int] = defaultdict(count(1).__next__)  # for Perfetto process 0 is the idle one
    temporary = folder / f".{MERGED_TRACE_FILE}.{os.getpid()}"
    try:
        with gzip.open(temporary, "wt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            separator = "\n"
            for rank, (base_ns, _) in begins.items():  # read again: only one at a time has to fit into memory
                for event in _renumber(rank, _read(paths[rank])[0], numbers):
                    if "ts" in event:
                        event["ts"] = (base_ns - begin_ns + _to_ns(event["ts"])) / 1000
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


def _read(path: Path) -> tuple[list[TraceEvent], int]:
    """Return the events of a trace, and the zero of their `ts` in nanoseconds since the epoch: PyTorch's traces have
    one, so that times of day keep what a float cannot hold. Raise one of UNREADABLE for a damaged file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content = json.load(file, parse_constant=lambda constant: None)  # NaN is not JSON, and Perfetto rejects it
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path} is not a Chrome trace")
    base = content.get("baseTimeNanoseconds", 0)
    return events, base if isinstance(base, int) else 0


def _is_timed(event: TraceEvent) -> bool:
    return event.get("ph") != "M" and isinstance(event.get("ts"), (int, float))


def _to_ns(ts_us: float) -> int:
    integer_us = int(ts_us // 1)
    return integer_us * 1000 + round((ts_us - integer_us) * 1000)


def _renumber(rank: int, events: list[TraceEvent], numbers: defaultdict[Any, int]) -> Iterator[TraceEvent]:
    """Yield the events of one rank, the names of its processes first, with `numbers` for processes and ids, so that
    those of different ranks differ and related ones stay equal. A process that has nothing but a name is left out."""
    facts = [event for event in events if event.get("name") == "process_name"]
    names = {json.dumps(event.get("pid")): (event.get("args") or {}).get("name") for event in facts}
    pids = dict.fromkeys(json.dumps(event.get("pid")) for event in events if event.get("ph") != "M")
    for pid in pids:
        name = names.get(pid, pid.strip('"'))
        title = f"rank {rank}: {name}" if name and len(pids) > 1 else f"rank {rank}"
        yield {"ph": "M", "name": "process_name", "pid": numbers["pid", rank, pid], "args": {"name": title}}
    for event in events:
        pid, is_fact = json.dumps(event.get("pid")), event.get("ph") == "M"
        if pid not in pids or (is_fact and event.get("name") in REWRITTEN_EVENTS):
            continue
        moved = {**event, "pid": numbers["pid", rank, pid]}
        # As numbers: Perfetto reads text as hexadecimal.
        moved |= {key: numbers["id", rank, json.dumps(event[key])] for key in ("id", "bind_id") if key in event}
        if not _is_timed(event):
            moved.pop("ts", None)
        yield moved
