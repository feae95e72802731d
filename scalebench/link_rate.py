"""Bytes a second and latency of the link between devices, from all-reduces of known sizes. Layer 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.parallel_choice import ring_bytes, ring_rounds

ALIKE = 1e-9  # sizes and messages that are each other's multiples say one thing only


@dataclass(frozen=True)
class Exchange:
    """One measured exchange of gradients: `messages` all-reduces of `size_bytes` in all."""

    devices: int
    messages: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class LinkRate:
    """`latency_s`: of one message; None where exchanges of one size do not tell it from the bytes' time."""

    bytes_per_s: float
    latency_s: float | None
    exchanges: int


def link_rate(exchanges: Sequence[Exchange]) -> LinkRate | None:
    """The line of least squares of the relative deviations, seconds = rounds * latency_s + sent / bytes_per_s, with
    bytes and rounds of a ring; None where nothing was exchanged, or the bytes make no difference.

    A latency below 0 is none, and is taken as 0. It is an effective rate: what summing up takes is in it.
    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """
    rows = [_row(one) for one in exchanges if one.devices > 1 and one.size_bytes > 0 and one.seconds > 0]
    if not rows:
        return None
    s11, s12, s22 = (math.fsum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    t1, t2 = (math.fsum(row[i] for row in rows) for i in (0, 1))
    determinant = s11 * s22 - s12 * s12
    if determinant <= ALIKE * s11 * s22:
        return LinkRate(s22 / t2, None, len(rows))
    latency_s, byte_s = (s22 * t1 - s12 * t2) / determinant, (s11 * t2 - s12 * t1) / determinant
    if byte_s <= 0:
        return None
    return LinkRate(1 / byte_s, latency_s, len(rows)) if latency_s > 0 else LinkRate(s22 / t2, 0.0, len(rows))


def _row(one: Exchange) -> tuple[float, float]:
    """Rounds and bytes over the seconds: 1 = latency_s * rounds / t + bytes / t / bytes_per_s."""
    rounds = one.messages * ring_rounds(one.devices)
    return rounds / one.seconds, ring_bytes(one.size_bytes, one.devices) / one.seconds
