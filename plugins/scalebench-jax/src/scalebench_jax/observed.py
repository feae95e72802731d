"""The backend and the all-reduces of a step, observed in the compiled program and the profiler's events."""

from __future__ import annotations

import re
from collections.abc import Iterable

# %all-reduce.3 = (f32[7,16]{1,0}, f32[]) all-reduce(...); an asynchronous one is all-reduce-start(...)
ALL_REDUCE = re.compile(r"%?([\w.-]+) = (\(.*?\)|\S+) all-reduce(?:-start)?\(")
ARRAY = re.compile(r"\b([a-z]+[0-9]+)\[([0-9,]*)\]")
BITS = re.compile(r"[0-9]+$")
NCCL = re.compile(r"nccl", re.IGNORECASE)


def all_reduce_bytes(hlo: str) -> dict[str, int]:
    """Return the bytes of each all-reduce of a compiled program, as one device sends them, by operation name."""
    return {
        name: sum(_array_bytes(*array) for array in ARRAY.findall(shapes)) for name, shapes in ALL_REDUCE.findall(hlo)
    }


def _array_bytes(dtype: str, shape: str) -> int:
    elements = 1
    for size in filter(None, shape.split(",")):
        elements *= int(size)
    bits = BITS.search(dtype)
    return elements * int(bits[0]) // 8 if bits else elements


def observed_backend(events: Iterable[str], all_reduces: Iterable[str]) -> str | None:
    """Return nccl if its kernels are among the events, xla if XLA itself ran one of `all_reduces`, the program's
    operations that sum over devices; None: nothing was synchronized."""
    names = set(events)
    if any(NCCL.search(name) for name in names):
        return "nccl"
    return "xla" if names & set(all_reduces) else None
