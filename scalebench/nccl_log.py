"""Which transport NCCL chose between two ranks, as its log tells with NCCL_DEBUG=INFO. Layer 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 4 * 2**20  # of each log: NCCL connects its ranks before the first update
AND = " + "
# Older versions say Ring, or no index of the connection, or no device or bus in brackets; so does RCCL of its channels.
CONNECTION = re.compile(
    r"NCCL INFO (?:Channel|Ring) \d+(?:/\d+)? : "
    r"(?P<from>\d+)(?:\[\w+\])? -> (?P<to>\d+)(?:\[\w+\])? (?:\[(?:send|receive)\] )?via (?P<way>\S.*)"
)


def transports(lines: Iterable[str]) -> dict[str, str]:
    """Transport by pair of ranks: {'0-1': 'P2P/IPC'}; several of a pair are joined by ' + '.

    The words are NCCL's own: P2P/... between GPUs, SHM/... through host memory, NET/... over a network. Ranks are
    those of NCCL's communicator. Lines that tell nothing, or that two writers tore apart, are passed over.
    """
    found: dict[tuple[int, int], set[str]] = {}
    for line in lines:
        if told := CONNECTION.search(line):
            low, high = sorted((int(told["from"]), int(told["to"])))
            found.setdefault((low, high), set()).add(told["way"].strip())
    return {f"{low}-{high}": AND.join(sorted(ways)) for (low, high), ways in sorted(found.items())}


def summary(found: dict[str, str] | None) -> str | None:
    """Each transport of any pair, once."""
    return AND.join(sorted({way for ways in found.values() for way in ways.split(AND)})) if found else None


def read(logs: Iterable[Path]) -> dict[str, str] | None:
    """`transports` of all that these logs say at their beginning; None where they say nothing of it."""
    lines: list[str] = []
    for log in logs:
        try:
            with log.open("rb") as file:
                lines += file.read(MOST_BYTES).decode(errors="replace").splitlines()
        except OSError:  # a rank that never started has none
            continue
    return transports(lines) or None
