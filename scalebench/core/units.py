"""Figures in the unit that suits their size. Layer 3."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scalebench.core.stats.estimates import Interval

if TYPE_CHECKING:
    pass

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
ROUNDED_UP = 0.9995  # of a unit: 999.6 us are 1.00 ms


def duration(interval: Interval) -> str:
    """`1.35 ms [1.20, 1.51]`: value and limits in one unit, that of the largest of them."""
    size, unit = _unit(max(map(abs, _finite(interval))), SECONDS)
    value, low, high = (_digits(figure / size, interval, size) for figure in _three(interval))
    return f"{value} {unit}" if _no_limits(interval) else f"{value} {unit} [{low}, {high}]"


def seconds(value_s: float) -> str:
    """`1.35 ms`"""
    return duration(Interval(value_s, value_s, value_s))


def rate(interval: Interval, unit: str) -> str:
    """`1,234 samples/s [1,200, 1,270]`"""
    value, low, high = (_digits(figure, interval, 1.0) for figure in _three(interval))
    return f"{value} {unit}" if _no_limits(interval) else f"{value} {unit} [{low}, {high}]"


def size(count: float) -> str:
    """`12.3 MB`, with decimal prefixes; whole bytes."""
    factor, unit = _unit(abs(count), BYTES)
    return f"{count:,.0f} B" if factor == 1 or count == 0 else f"{_decimals(count / factor, count / factor)} {unit}"


def share(value: float) -> str:
    """`12.3 %` of a share of 0.123."""
    return f"{100 * value:z.1f} %"  # z: no "-0.0"


def figure(value: float) -> str:
    """`12.3`, three digits at the least."""
    return _decimals(value, value)


def _unit(largest: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((unit for unit in units if largest >= ROUNDED_UP * unit[0]), units[0 if largest == 0 else -1])


def _three(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def _finite(interval: Interval) -> list[float]:
    return [figure for figure in _three(interval) if math.isfinite(figure)]


def _no_limits(interval: Interval) -> bool:
    """A figure alone, or with a limit that the data cannot give."""
    return interval.low == interval.high or len(_finite(interval)) < 3


def _digits(figure: float, interval: Interval, size: float) -> str:
    """As many decimals as the largest of the three needs for three digits."""
    return _decimals(figure, max(map(abs, _finite(interval))) / size)


def _decimals(figure: float, largest: float) -> str:
    decimals = 0 if abs(largest) >= 99.95 else 1 if abs(largest) >= 9.995 else 2
    return f"{figure:z,.{decimals}f}"


def size_words(size_bytes: float) -> str:
    """`64 KiB`, to three digits."""
    for unit in ("B", "KiB", "MiB"):
        if round(size_bytes, 1) < 1024:
            return f"{size_bytes:.3g} {unit}" if size_bytes < 1000 else f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.3g} GiB"
