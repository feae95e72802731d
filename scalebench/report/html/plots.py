"""A chart as a figure of plotly.js: plain dictionaries, without colours, which the page puts in. Layer 3.

Which colour, dash and marker a line has: a strategy the same in every chart of a report. Layer 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.report.document import Axis, Chart, Number, Series
from scalebench.report.html.escaping import for_plotly

COLOURS = 8  # --c0 to --c7 in page.css, one set for each theme
DASHES = "solid dash dot dashdot longdash longdashdot".split()
SYMBOLS = "circle square diamond triangle-up triangle-down star hexagon cross".split()
PATTERNS = ["", "/", "\\", ".", "x", "-"]  # of bars


@dataclass(frozen=True)
class Look:
    """`slot` is the number of a colour; None is grey."""

    slot: int | None
    dash: str
    symbol: str
    pattern: str


IDEAL = Look(None, "dash", "circle", "")


class Looks:
    """Made once from all charts. Where colours end, dashes, markers and patterns still tell strategies apart."""

    def __init__(self, charts: Iterable[Chart]) -> None:
        self._places: dict[tuple[str, str], int] = {}
        counts = {"strategy": 0, "name": 0}
        for key in (key for chart in charts for key in _keys(chart) if key is not None):
            if key not in self._places:
                self._places[key] = counts[key[0]]
                counts[key[0]] += 1

    def of(self, chart: Chart) -> Sequence[Look]:
        """One for each series. The second line of a strategy in one chart has its colour, another dash and marker."""
        seen: dict[tuple[str, str], int] = {}
        found = []
        for key in _keys(chart):
            if key is None:
                found.append(IDEAL)
                continue
            found.append(_look(self._places[key], seen.get(key, 0)))
            seen[key] = seen.get(key, 0) + 1
        return found


def _keys(chart: Chart) -> list[tuple[str, str] | None]:
    """What each series has its look for: its strategy, or its name where that tells more; None for ideal lines.

    Parts that are stacked have names, and so have the clocks or parts of one strategy: all would be of its colour.
    """
    drawn = [series for series in chart.series if series.style != "ideal"]
    strategies, names = {_strategy(series) for series in drawn}, {series.name for series in drawn}
    named = chart.kind == "stacked" or len(strategies) == 1 < len(names)
    return [
        None
        if series.style == "ideal"
        else ("name", series.name)
        if named or not _strategy(series)
        else ("strategy", _strategy(series))
        for series in chart.series
    ]


def _strategy(series: Series) -> str:
    return series.tags.get("strategy", "")


def _look(place: int, variant: int) -> Look:
    number = place + variant + place // COLOURS  # the ninth strategy has the first one's colour, and another dash
    symbol = SYMBOLS[number % len(SYMBOLS)] + ("-open" if variant % 2 else "")
    return Look(place % COLOURS, DASHES[number % len(DASHES)], symbol, PATTERNS[(variant + place // COLOURS) % 6])


MARKED = 30  # points, above which a line has no markers
Figure = dict[str, Any]


def figure(chart: Chart, looks: Sequence[Look]) -> Figure:
    """`data` and `layout`; `meta` of a trace says its role, colour, tags and the number of its series."""
    traces: list[Figure] = []
    for number, (series, look) in enumerate(zip(chart.series, looks, strict=True)):
        meta: Figure = {"series": number, "slot": look.slot, "tags": dict(series.tags)}
        if series.point_tags:
            meta["points"] = [dict(tags) for tags in series.point_tags]
        if chart.kind == "lines":
            band = _band(chart, series, meta)
            # A click on a name in the legend takes the band with the line.
            traces += [*band, {**_line(chart, series, look, meta), **({"legendgroup": str(number)} if band else {})}]
        else:
            traces.append(_bars(chart, series, look, meta))
    layout: Figure = {"xaxis": _axis(chart.x, chart, "x"), "yaxis": _axis(chart.y, chart, "y")}
    if chart.kind != "lines":
        layout["barmode"] = "relative" if chart.kind == "stacked" else "group"
    return {"data": traces, "layout": layout}


def exact(number: float | str | None) -> float | str | None:
    """Nine digits, more than any figure here is known to; null for what is no number."""
    if number is None or isinstance(number, str):
        return for_plotly(number) if number is not None else None
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(number, int) else float(f"{number:.9g}")


def _line(chart: Chart, series: Series, look: Look, meta: Figure) -> Figure:
    pointed = series.style in ("published", "points")
    marked = pointed or (series.style == "line" and len(series.x) <= MARKED)
    trace = {
        **_points(chart, series),
        "type": "scatter",
        "mode": "markers" if pointed else "lines+markers" if marked else "lines",
        "meta": {**meta, "role": series.style},
    }
    if not pointed:
        trace["line"] = {"dash": look.dash if series.style != "ideal" else "dash", "width": 2 if marked else 1.5}
    if marked:
        trace["marker"] = {"symbol": _open(look.symbol) if series.style == "published" else look.symbol,
                           "size": 10 if series.style == "published" else 7}  # fmt: skip
    alone = _alone(chart, series)
    if any(low is not None for low, _ in alone):
        trace["error_y"] = _errors(series, alone)
    return trace


def _bars(chart: Chart, series: Series, look: Look, meta: Figure) -> Figure:
    trace = {**_points(chart, series), "type": "bar", "meta": {**meta, "role": "bar"}}
    if look.pattern:
        trace["marker"] = {"pattern": {"shape": look.pattern, "size": 6, "fillmode": "overlay"}}
    limits = list(_limits(series))
    # Upon each other they would tell of the sum, which these are not of: there they stand in the table.
    if chart.kind == "bars" and any(low is not None for low, _ in limits):
        trace["error_y"] = _errors(series, limits)
    return trace


def _points(chart: Chart, series: Series) -> Figure:
    said = "%{y:.1%}" if chart.y.percent else "%{y:.4g}"
    hints = [_hint(chart, series, number) for number in range(len(series.x))]
    found: Figure = {
        "name": for_plotly(series.name),
        "x": [exact(x) for x in series.x],
        "y": [exact(y) for y in series.y],
        "hovertemplate": f"<b>%{{fullData.name}}</b><br>%{{x}}: {said}%{{customdata}}<extra></extra>",
        "customdata": hints if any(hints) else [""] * len(hints),
    }
    return found


def _hint(chart: Chart, series: Series, number: int) -> str:
    """What stands below a point's figure: its interval, and its note."""
    low, high = _limit(series.low, number), _limit(series.high, number)
    parts = [] if low is None or high is None else [f"95 %: {_said(low, chart.y)} to {_said(high, chart.y)}"]
    if number < len(series.notes) and series.notes[number]:
        parts.append(for_plotly(series.notes[number]))
    return "".join(f"<br>{part}" for part in parts)


def _said(number: float, axis: Axis) -> str:
    return f"{100 * number:.1f} %" if axis.percent else f"{number:.4g}"


def _band(chart: Chart, series: Series, meta: Figure) -> list[Figure]:
    """One closed shape for each stretch of points with limits; between two of them plotly leaves a gap."""
    xs: list[Any] = []
    ys: list[Any] = []
    for stretch in _stretches(chart, series):
        if len(stretch) > 1:
            gap = [None] if xs else []
            there, back = stretch, stretch[::-1]
            xs += [*gap, *[exact(series.x[k]) for k in [*there, *back]]]
            ys += [*gap, *[exact(series.low[k]) for k in there], *[exact(series.high[k]) for k in back]]
    if not xs:
        return []
    return [{"type": "scatter", "x": xs, "y": ys, "mode": "lines", "fill": "toself", "line": {"width": 0},
             "hoverinfo": "skip", "showlegend": False, "legendgroup": str(meta["series"]),
             "meta": {**meta, "role": "band"}}]  # fmt: skip


def _alone(chart: Chart, series: Series) -> list[tuple[Number, Number]]:
    """Limits of the points that no band shows, since no neighbour has any or since they are no line."""
    lines = series.style == "line"
    banded = {k for stretch in _stretches(chart, series) if lines and len(stretch) > 1 for k in stretch}
    return [(None, None) if k in banded else limits for k, limits in enumerate(_limits(series))]


def _stretches(chart: Chart, series: Series) -> list[list[int]]:
    """Numbers of neighbouring points with both limits; a logarithmic axis has no place for a limit of 0 or less."""
    found: list[list[int]] = [[]]
    for number, (low, high) in enumerate(_limits(series)):
        if series.style != "line" or low is None or high is None or (chart.y.log and low <= 0):
            found.append([])
        else:
            found[-1].append(number)
    return [stretch for stretch in found if stretch]


def _limits(series: Series) -> Iterator[tuple[Number, Number]]:
    for number, y in enumerate(series.y):
        low, high = _limit(series.low, number), _limit(series.high, number)
        yield (low, high) if y is not None and low is not None and high is not None else (None, None)


def _limit(limits: Sequence[Number], number: int) -> Number:
    found = limits[number] if number < len(limits) else None
    return found if found is not None and math.isfinite(found) else None


def _errors(series: Series, limits: Sequence[tuple[Number, Number]]) -> Figure:
    up = [None if high is None or y is None else exact(high - y) for y, (_, high) in zip(series.y, limits, strict=True)]
    down = [None if low is None or y is None else exact(y - low) for y, (low, _) in zip(series.y, limits, strict=True)]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 4}


def _axis(axis: Axis, chart: Chart, which: str) -> Figure:
    found: Figure = {"title": {"text": for_plotly(axis.title)}}
    if which == "x" and (chart.kind != "lines" or _worded(chart)):
        return found | {"type": "category", "categoryorder": "array", "categoryarray": _categories(chart)}
    if axis.log:
        found["type"] = "log"
    elif axis.from_zero:
        found["rangemode"] = "tozero"
    if axis.percent:
        found["tickformat"] = ".0%" if not axis.log else ".1%"
    if axis.ticks:
        found |= {"tickmode": "array", "tickvals": [exact(tick) for tick in axis.ticks],
                  "ticktext": [f"{tick:g}" for tick in axis.ticks] if not axis.percent else None}  # fmt: skip
    return {key: value for key, value in found.items() if value is not None}


def _worded(chart: Chart) -> bool:
    return any(isinstance(x, str) for series in chart.series for x in series.x)


def _categories(chart: Chart) -> list[Any]:
    """Numbers rise; words stand as they came."""
    found = list(dict.fromkeys(x for series in chart.series for x in series.x))
    return [exact(x) for x in (found if _worded(chart) else sorted(found, key=float))]


def _open(symbol: str) -> str:
    return symbol if symbol.endswith("-open") else f"{symbol}-open"
