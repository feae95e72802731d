"""Texts of figures for people: each in the unit that suits its size, with its limits where it has some."""

from __future__ import annotations

import math
from collections.abc import Callable

from scalebench.core.stats.estimates import Estimate

SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
DEVICE_HOUR_UNITS = ((1.0, "device-hours"), (1 / 3600, "device-seconds"))
# Units of a chart's axis by the unit of its values: the largest one that the largest value reaches.
UNITS = {
    "s": SECOND_UNITS,
    "bytes": BYTE_UNITS,
    "bytes/s": tuple((size, f"{name}/s") for size, name in BYTE_UNITS),
    "device-hours": DEVICE_HOUR_UNITS,
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
}
MIN_DEVICE_HOURS = 0.1  # less is written in seconds
MIN_SHARE_OF_UNIT = 0.9995  # 999.6 us are written as 1.00 ms


def format_seconds(seconds: float | Estimate) -> str:
    """Return `1.35 ms [1.20, 1.51]`: value and limits in one unit, that of the largest of them."""
    return _format_scaled(seconds, *choose_unit(_largest(seconds), SECOND_UNITS))


def format_rate(rate: float | Estimate, unit: str = "") -> str:
    """Return `1,234 samples/s [1,200, 1,270]`."""
    return _format_scaled(rate, 1.0, unit)


def format_bytes(count: float) -> str:
    """Return `12.3 MB`, with decimal prefixes; bytes without decimals."""
    size, unit = choose_unit(abs(count), BYTE_UNITS)
    return f"{count:,.0f} B" if size == 1 or count == 0 else f"{format_number(count / size)} {unit}"


def format_binary_bytes(size_bytes: float) -> str:
    """Return `64 KiB`, to three digits."""
    for unit in ("B", "KiB", "MiB"):
        if round(size_bytes, 1) < 1024:
            return f"{size_bytes:.3g} {unit}" if size_bytes < 1000 else f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.3g} GiB"


def format_percent(share: float | Estimate, decimals: int = 1) -> str:
    """Return `12.3 %` for a share of 0.123, and `93 % [91, 95]` with limits and without decimals."""
    return format_limits(share, lambda figure: f"{100 * figure:z.{decimals}f}", "%")  # z: no "-0.0"


def format_ratio(ratio: float | Estimate) -> str:
    """Return `1.86 [1.82, 1.90]`."""
    return format_limits(ratio, "{:.2f}".format)


def format_limits(figure: float | Estimate, show: Callable[[float], str], unit: str = "") -> str:
    """Return `value unit [low, high]`, each figure as `show` writes it; a figure without both limits stands alone."""
    value = f"{show(figure.value if isinstance(figure, Estimate) else figure)} {unit}".rstrip()
    if not isinstance(figure, Estimate) or not figure.has_limits:
        return value
    return f"{value} [{show(figure.low)}, {show(figure.high)}]"


def format_number(value: float) -> str:
    """Return `12.3`: three digits at the least."""
    return _format_like(value, value)


def format_count(count: int, name: str) -> str:
    """Return `1 device`, `2 devices`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def format_device_hours(hours: float) -> str:
    """Return `1.25 h`, and `12.0 s` below MIN_DEVICE_HOURS."""
    if hours < MIN_DEVICE_HOURS:
        return format_seconds(3600 * hours)
    return f"{hours:,.0f} h" if hours >= 1000 else f"{hours:.3g} h"


def choose_unit(largest: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """Return size and name of the first unit that `largest` reaches; of 0 the first, of less than all the last."""
    return next((unit for unit in units if largest >= MIN_SHARE_OF_UNIT * unit[0]), units[0 if largest == 0 else -1])


def _format_scaled(figure: float | Estimate, size: float, unit: str) -> str:
    """Return the value in a unit of this size, with its limits unless they are equal."""
    largest = _largest(figure) / size
    if isinstance(figure, Estimate) and figure.low == figure.high:
        figure = figure.value
    return format_limits(figure, lambda each: _format_like(each / size, largest), unit)


def _largest(figure: float | Estimate) -> float:
    figures = (figure.value, figure.low, figure.high) if isinstance(figure, Estimate) else (figure,)
    return max(abs(each) for each in figures if math.isfinite(each))


def _format_like(figure: float, largest: float) -> str:
    """Return the figure with as many decimals as `largest` needs for three digits."""
    decimals = 0 if abs(largest) >= 99.95 else 1 if abs(largest) >= 9.995 else 2
    return f"{figure:z,.{decimals}f}"
