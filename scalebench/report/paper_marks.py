"""Lines, bands and bars of a chart on matplotlib's axes. Layer 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scalebench.report.blocks import Chart, Number, Series
from scalebench.report.html.looks import Look

# M. Okabe, K. Ito, Color Universal Design (2008): told apart with any kind of colour vision. Yellow is the last, since
# it is hardly seen on paper.
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #F0E442".split()
GREY = "#888888"
DASHES: dict[str, Any] = {
    "solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)), "longdashdot": (0, (9, 3, 1, 3)),
}  # fmt: skip
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "star": "*",
    "hexagon": "h", "cross": "P",
}  # fmt: skip
HATCHES = {"": "", "/": "///", "\\": "\\\\\\", ".": "...", "x": "xxx", "-": "---"}
MARKED = 30  # points, above which a line has no markers
Drawn = Sequence[tuple[Series, Look]]


def draw(axes: Any, chart: Chart, drawn: Drawn) -> list[Any]:
    """The handle of each series, for a legend."""
    if chart.kind == "lines":
        return [_line(axes, series, look) for series, look in drawn]
    return _bars(axes, drawn, chart.kind == "stacked")


def colour(look: Look) -> str:
    return GREY if look.slot is None else COLOURS[look.slot % len(COLOURS)]


def _line(axes: Any, series: Series, look: Look) -> Any:
    ys = [_figure(y) for y in series.y]
    if series.style == "ideal":
        (handle,) = axes.plot(series.x, ys, color=GREY, linestyle="--", linewidth=0.8, zorder=1)
        return handle
    pointed = series.style in ("points", "published")
    open_ = series.style == "published" or look.symbol.endswith("-open")
    marker = MARKERS[look.symbol.removesuffix("-open")] if pointed or len(ys) <= MARKED else ""
    (handle,) = axes.plot(
        series.x, ys, color=colour(look), marker=marker, linestyle="none" if pointed else DASHES[look.dash],
        markerfacecolor="white" if open_ else colour(look), markersize=6 if series.style == "published" else None,
    )  # fmt: skip
    low, high = _limits(series)
    if any(not math.isnan(limit) for limit in low) and not pointed and len(ys) > 1:
        axes.fill_between(series.x, low, high, color=colour(look), alpha=0.18, linewidth=0)
    elif any(not math.isnan(limit) for limit in low):
        _whiskers(axes, series.x, series, colour(look))
    return handle


def _bars(axes: Any, drawn: Drawn, stacked: bool) -> list[Any]:
    """Beside each other, or upon each other with what is negative below zero."""
    places = list(dict.fromkeys(x for series, _ in drawn for x in series.x))
    if not any(isinstance(x, str) for x in places):
        places.sort()
    at = {x: float(number) for number, x in enumerate(places)}
    width = 0.7 if stacked else 0.8 / max(1, len(drawn))
    above, below = dict.fromkeys(places, 0.0), dict.fromkeys(places, 0.0)
    handles = []
    for number, (series, look) in enumerate(drawn):
        ys = [0.0 if y is None else float(y) for y in series.y]
        xs = [at[x] + (0.0 if stacked else (number - (len(drawn) - 1) / 2) * width) for x in series.x]
        bottoms = [0.0] * len(ys)
        if stacked:
            for k, (x, y) in enumerate(zip(series.x, ys, strict=True)):
                pile = above if y >= 0 else below
                bottoms[k], pile[x] = pile[x], pile[x] + y
        handles.append(axes.bar(xs, ys, width, bottoms, color=colour(look), hatch=HATCHES[look.pattern],
                                edgecolor="white", linewidth=0.4))  # fmt: skip
        if not stacked and series.low:
            _whiskers(axes, xs, series, "black")
    words = [x if isinstance(x, str) else f"{x:g}" for x in places]
    crowded = sum(map(len, words)) > 40
    axes.set_xticks(list(at.values()), words, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.grid(False, axis="x")
    return handles


def _whiskers(axes: Any, xs: Sequence[Any], series: Series, colour: str) -> None:
    low, high = _limits(series)
    for x, lower, upper in zip(xs, low, high, strict=True):
        if not math.isnan(lower):
            axes.plot([x, x], [lower, upper], color=colour, linewidth=0.9, marker="_", markersize=3)


def _limits(series: Series) -> tuple[list[float], list[float]]:
    """Of each point, both or neither; an upper limit that the data cannot give ends nowhere, and is not drawn."""
    pairs = [(_at(series.low, k), _at(series.high, k)) for k in range(len(series.y))]
    known = [(low, high) if not math.isnan(low + high) else (math.nan, math.nan) for low, high in pairs]
    return [low for low, _ in known], [high for _, high in known]


def _at(limits: Sequence[Number], number: int) -> float:
    return _figure(limits[number]) if number < len(limits) else math.nan


def _figure(value: Number) -> float:
    """A gap where nothing was measured."""
    return math.nan if value is None or math.isinf(value) else float(value)
