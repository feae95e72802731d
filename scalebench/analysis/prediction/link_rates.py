"""Rates of the links between devices, from isolated synchronization of gradients and from measured all-reduces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalebench.analysis.collectives import list_collectives
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import fit_least_squares

MIN_SIZE_INDEPENDENCE = 1e-9  # below it sizes and messages are proportional and cannot separate latency from bandwidth
SIZE_RANGE = 8  # of all-reduces that tell the rate of a message; their sizes are powers of 4
LINK_COLUMNS = ("hardware", "machine", "framework", "backend_used", "gpus", "nodes")  # rows that use one link

Row = Mapping[str, Any]
ReadRecord = Callable[[Row], Result]  # returns the complete record of a row; InputError if it was deleted


class MeasuredSync(NamedTuple):
    """One measured gradient synchronization: `messages` all-reduces of `size_bytes` in total."""

    devices: int
    messages: int
    size_bytes: float
    seconds: float


class LinkRate(NamedTuple):
    """The rate of a link; `latency_s` of one message is None if one size cannot separate it from the bytes' time."""

    bytes_per_s: float
    latency_s: float | None


SyncsByLink = dict[tuple[Any, ...], list[MeasuredSync]]


def ring_bytes(size: float, devices: int) -> float:
    """Return the bytes that each device sends in a ring all-reduce of `size` bytes (Patarasuk and Yuan 2009)."""
    return 2 * (devices - 1) / devices * size


def fit_link_rate(syncs: Sequence[MeasuredSync]) -> LinkRate | None:
    """Fit seconds = rounds * latency_s + sent / bytes_per_s with the least squares of relative deviations.

    Bytes and rounds are those of a ring. None if there are no measurements. Where more bytes took less time, the rate
    is that without a latency; a negative latency counts as 0. The rate is an effective one: it includes the summation.
    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """
    # Rounds and bytes over the seconds: 1 = latency_s * rounds / t + bytes / t / bytes_per_s.
    syncs = [sync for sync in syncs if sync.devices > 1 and sync.size_bytes > 0 and sync.seconds > 0]
    rows = [(each.messages * 2 * (each.devices - 1) / each.seconds,
             ring_bytes(each.size_bytes, each.devices) / each.seconds) for each in syncs]  # fmt: skip
    if not rows:
        return None
    by_bytes_alone = math.fsum(sent * sent for _, sent in rows) / math.fsum(sent for _, sent in rows)
    fit = fit_least_squares(rows, [1.0] * len(rows), MIN_SIZE_INDEPENDENCE)
    if fit is None:
        return LinkRate(by_bytes_alone, None)
    latency_s, byte_s = map(float, fit.coefficients)
    if byte_s <= 0:  # noise, or messages too small for their bytes to count
        return LinkRate(by_bytes_alone, None)
    return LinkRate(1 / byte_s, latency_s) if latency_s > 0 else LinkRate(by_bytes_alone, 0.0)


def group_syncs_by_link(rows: Iterable[Row], read: ReadRecord) -> SyncsByLink:
    """Group measured synchronizations by their link, with all-reduces that were measured apart, of sizes near those of
    a message: rates of far ones are others."""
    by_link: SyncsByLink = {}
    for row in rows:
        if row["gpus"] < 2 or not (sizes := message_bytes(row, read)):
            continue
        syncs = [] if not row["sync_isolated_s"] else [
            MeasuredSync(row["gpus"], len(sizes), sum(sizes), row["sync_isolated_s"])]  # fmt: skip
        mean = sum(sizes) / len(sizes)
        syncs += [
            MeasuredSync(row["gpus"], 1, each["size_bytes"], each["time_s"])
            for each in list_collectives(read(row))
            if each["name"] == "all_reduce" and mean / SIZE_RANGE <= each["size_bytes"] <= mean * SIZE_RANGE
        ]
        if syncs:
            by_link.setdefault(link_key(row), []).extend(syncs)
    return by_link


def link_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in LINK_COLUMNS)


def message_bytes(row: Row, read: ReadRecord) -> list[int]:
    try:
        return read(row).sync.message_bytes
    except InputError:
        return []
