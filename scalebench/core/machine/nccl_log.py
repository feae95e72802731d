"""Reads from the log that NCCL_DEBUG=INFO makes which transport NCCL chose between two ranks. Layer 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MAX_BYTES = 4 * 2**20  # of each log: NCCL connects its ranks before the first update
AND = " + "
# Older versions say Ring, or no index of the connection, or no device or bus in brackets; so does RCCL of its channels.
CONNECTION = re.compile(
    r"NCCL INFO (?:Channel|Ring) \d+(?:/\d+)? : "
    r"(?P<from>\d+)(?:\[\w+\])? -> (?P<to>\d+)(?:\[\w+\])? (?:\[(?:send|receive)\] )?via (?P<way>\S.*)"
)


def transports(lines: Iterable[str]) -> dict[str, str]:
    """Return the transport by pair of ranks: {'0-1': 'P2P/IPC'}; several of a pair are joined by ' + '.

    The words are NCCL's own: P2P/... between GPUs, SHM/... through host memory, NET/... over a network. Ranks are
    those of NCCL's communicator. Other lines, and those that two writers mixed up, are passed over.
    """
    ways: dict[tuple[int, int], set[str]] = {}
    for line in lines:
        if match := CONNECTION.search(line):
            low, high = sorted((int(match["from"]), int(match["to"])))
            ways.setdefault((low, high), set()).add(match["way"].strip())
    return {f"{low}-{high}": AND.join(sorted(of_pair)) for (low, high), of_pair in sorted(ways.items())}


def summary(by_pair: dict[str, str] | None) -> str | None:
    """Return each transport of any pair, once."""
    return AND.join(sorted({way for ways in by_pair.values() for way in ways.split(AND)})) if by_pair else None


def read(logs: Iterable[Path]) -> dict[str, str] | None:
    """Return the `transports` of the beginning of these logs; None where they name none."""
    lines: list[str] = []
    for log in logs:
        try:
            with log.open("rb") as file:
                lines += file.read(MAX_BYTES).decode(errors="replace").splitlines()
        except OSError:  # a rank that never started has none
            continue
    return transports(lines) or None
