"""What really carried the gradients, read off the compiled update and off what ran, and not off the settings."""

from __future__ import annotations

import re
from collections.abc import Iterable

# %all-reduce.3 = (f32[7,16]{1,0}, f32[]) all-reduce(...); where it runs beside others, all-reduce-start(...)
ALL_REDUCE = re.compile(r"%?([\w.-]+) = (\(.*?\)|\S+) all-reduce(?:-start)?\(")
ARRAY = re.compile(r"\b([a-z]+[0-9]+)\[([0-9,]*)\]")
BITS = re.compile(r"[0-9]+$")
NCCL = re.compile(r"nccl", re.IGNORECASE)


def all_reduces(hlo: str) -> dict[str, int]:
    """Bytes of each all-reduce of a compiled program, as one device sends them, by the name of its operation."""
    return {name: sum(_bytes(*array) for array in ARRAY.findall(shapes)) for name, shapes in ALL_REDUCE.findall(hlo)}


def _bytes(dtype: str, shape: str) -> int:
    elements = 1
    for size in filter(None, shape.split(",")):
        elements *= int(size)
    bits = BITS.search(dtype)
    return elements * int(bits[0]) // 8 if bits else elements


def backend_of(events: Iterable[str], carriers: Iterable[str]) -> str | None:
    """nccl where its kernels are among the events, xla where XLA adds up by itself; None: nothing was exchanged.

    `carriers` are the operations of the program that add up over the devices.
    """
    seen, wanted = set(events), set(carriers)
    if any(NCCL.search(name) for name in seen):
        return "nccl"
    return "xla" if seen & wanted else None
