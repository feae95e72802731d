"""A chart as a figure of plotly.js, and the line styles of its series.

A figure is made of plain dictionaries, without colours, which the page adds for its theme.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from scalebench.core.errors import InputError
from scalebench.core.untrusted import clean_text
from scalebench.report import document as doc

COLOUR_COUNT = 8  # --c0 to --c7 in page.css, one set for each theme; those of PARTS follow
DASHES = "solid dash dot dashdot longdash longdashdot".split()
SYMBOLS = "circle square diamond triangle-up triangle-down star hexagon cross".split()
PATTERNS = ["", "/", "\\", ".", "x", "-"]  # of bars
MAX_MARKED_POINTS = 30  # points up to which a line has markers

Figure = dict[str, Any]


@dataclass(frozen=True)
class LineStyle:
    """The style of a line or bar. `slot` is the number of a colour; None is grey."""

    slot: int | None
    dash: str
    symbol: str
    pattern: str


IDEAL_STYLE = LineStyle(None, "dash", "circle", "")


class ChartStyles:
    """Line styles for all charts of a report, in which a strategy always has the same one. Parts of a step have the
    same colours in every report.

    If there are more strategies than colours, dashes, markers and patterns distinguish them.
    """

    def __init__(self, charts: Iterable[doc.Chart]) -> None:
        self._positions: dict[tuple[str, str], int] = {}
        counts = {"strategy": 0, "name": 0}
        for key in (key for chart in charts for key in _style_keys(chart) if key is not None):
            if key[0] != "part" and key not in self._positions:
                self._positions[key] = counts[key[0]]
                counts[key[0]] += 1

    def of(self, chart: doc.Chart) -> Sequence[LineStyle]:
        """Return a style for each series. The second line of a strategy in one chart has the same colour, and another
        dash and marker."""
        seen: Counter[tuple[str, str]] = Counter()
        styles = []
        for key in _style_keys(chart):
            if key is None:
                styles.append(IDEAL_STYLE)
                continue
            variant = seen[key]
            seen[key] += 1
            if key[0] == "part":  # parts that could not be measured apart have the colour of the first, and a pattern
                slot = COLOUR_COUNT + doc.PARTS.index(key[1])
                styles.append(LineStyle(slot, "solid", "diamond", PATTERNS[variant % len(PATTERNS)]))
                continue
            cycle, slot = divmod(self._positions[key], COLOUR_COUNT)  # the ninth has the first's colour, another dash
            number = self._positions[key] + variant + cycle
            symbol = SYMBOLS[number % len(SYMBOLS)] + ("-open" if variant % 2 else "")
            pattern = PATTERNS[(variant + cycle) % len(PATTERNS)]
            styles.append(LineStyle(slot, DASHES[number % len(DASHES)], symbol, pattern))
        return styles


def _style_keys(chart: doc.Chart) -> list[tuple[str, str] | None]:
    """Return what determines the style of each series, None for an ideal line: its strategy, or its name if that is
    more specific.

    Stacked parts and several lines of one strategy are coloured by their names: they would all have its colour else.
    """
    measured = [series for series in chart.series if series.style != "ideal"]
    strategies, names = {series.tags.get("strategy") for series in measured}, {series.name for series in measured}
    by_name = chart.kind == "stacked" or len(strategies) == 1 < len(names)
    keys: list[tuple[str, str] | None] = []
    for series in chart.series:
        strategy = series.tags.get("strategy")
        own = ("name", series.name) if by_name or not strategy else ("strategy", strategy)
        keys.append(None if series.style == "ideal" else ("part", series.part) if series.part else own)
    return keys


def make_figure(chart: doc.Chart, styles: Sequence[LineStyle]) -> Figure:
    """Return `data` and `layout`; `meta` of a trace holds its role, colour, tags and the number of its series."""
    traces: list[Figure] = []
    lengths = doc.stack_lengths(chart) if chart.kind == "stacked" else []
    # Dots and values are points, which stand on their bar by its offsetgroup.
    has_points = chart.kind == "bars" and (chart.has_bar_labels or any(each.list_dots() for each in chart.series))
    for number, (series, style) in enumerate(zip(chart.series, styles, strict=True)):
        meta: Figure = {"series": number, "slot": style.slot, "tags": dict(series.tags)}
        if series.point_tags:
            meta["points"] = [dict(tags) for tags in series.point_tags]
        if chart.kind == "lines":
            dotted = {"mode": "lines", "line": {"dash": "dot", "width": 1.2}}
            fit = [_make_trace_beside("fit", meta, series.x, series.fit, **dotted)] if series.fit else []
            beside = [*_make_band(chart, series, meta), *fit, *_make_dots(series, meta)]
            # A click on a name in the legend takes band and dots with the line.
            group = {"legendgroup": str(number)} if beside else {}
            traces += [*beside, {**_make_line_trace(chart, series, style, meta), **group}]
        elif chart.kind == "stacked":  # without dots and intervals, which would seem to be those of the sums
            traces += _make_stack_traces(chart, series, style, meta, lengths[number])
        else:
            points = [*_make_dots(series, meta), *(_make_bar_labels(chart, series, meta) if has_points else [])]
            group = {"legendgroup": str(number), "offsetgroup": str(number)} if has_points else {}
            bar = {**_make_points(chart, series), "type": "bar", "meta": {**meta, "role": "bar"}}
            bar |= _make_pattern(style) | _make_error_bars(series, series.limits)
            traces += [{**trace, **group} for trace in (bar, *points)]
    if chart.kind == "stacked":  # bars lie, so that there is room for the names beside them
        names = {**_make_axis(chart.x, chart, "x"), "title": {"text": ""}, "autorange": "reversed"}
        layout: Figure = {"xaxis": _make_axis(chart.y, chart, "y"), "yaxis": names}
    else:
        layout = {"xaxis": _make_axis(chart.x, chart, "x"), "yaxis": _make_axis(chart.y, chart, "y")}
    if chart.kind != "lines":
        layout["barmode"] = "relative" if chart.kind == "stacked" else "group"
        layout |= {"scattermode": "group"} if has_points else {}
    return {"data": traces, "layout": layout}


def make_plotly_figures(charts: Sequence[doc.Chart]) -> list[Any]:
    """Return charts as figures of Python's plotly, in the colours of the page. Raise InputError without plotly."""
    try:
        from plotly.graph_objects import Figure as PlotlyFigure
    except ImportError as error:
        raise InputError("plot needs plotly; install it: pip install 'scalebench-train[notebook]'") from error
    css = resources.files(__package__).joinpath("assets", "page.css").read_text(encoding="utf-8")
    # Reversed, since the first theme of the page is that of a light background.
    colours = dict(reversed(re.findall(r"--([\w]+): (#[0-9a-fA-F]{3,6});", css)))
    styles = ChartStyles(charts)
    figures = []
    for chart in charts:
        figure = make_figure(chart, styles.of(chart))
        traces = [_set_colours(trace, colours) for trace in figure["data"]]
        layout = {**figure["layout"], "title": {"text": escape_plotly(chart.title)}, "template": "plotly_white"}
        figures.append(PlotlyFigure(traces, layout))
    return figures


def _set_colours(trace: Figure, colours: Mapping[str, str]) -> Figure:
    """Return a trace with its colours, as charts.js sets them in the page."""
    slot, role = trace["meta"]["slot"], trace["meta"]["role"]
    colour = colours["muted"] if slot is None else colours[f"c{slot}"]
    if role == "band":
        return {**trace, "fillcolor": f"rgba({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))}, 0.18)"}
    is_on_bar = role == "repeat" and "offsetgroup" in trace
    trace = {**trace, "marker": {**trace.get("marker", {}), "color": colours["ink"] if is_on_bar else colour}}
    for part in {"line", "error_y"} & trace.keys():
        trace[part] = {**trace[part], "color": colours["ink"] if role == "bar" else colour}
    return trace


def round_number(number: float | str | None) -> float | str | None:
    """Round to nine digits, more than any figure here is accurate to; return None for what is not a number."""
    if number is None or isinstance(number, str):
        return escape_plotly(number) if number is not None else None
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(number, int) else float(f"{number:.9g}")


def _make_line_trace(chart: doc.Chart, series: doc.Series, style: LineStyle, meta: Figure) -> Figure:
    only_points = series.style == "points"
    marked = only_points or (series.style == "line" and len(series.x) <= MAX_MARKED_POINTS)
    trace = {
        **_make_points(chart, series),
        "type": "scatter",
        "mode": "markers" if only_points else "lines+markers" if marked else "lines",
        "meta": {**meta, "role": series.style},
    }
    if not only_points:
        trace["line"] = {"dash": style.dash if series.style != "ideal" else "dash", "width": 2 if marked else 1.5}
    if marked:
        trace["marker"] = {"symbol": style.symbol, "size": 7}
    # Points that no band shows, because no neighbour has limits or they are not a line, have bars.
    banded = {k for stretch in _find_stretches(chart, series) if len(stretch) > 1 for k in stretch}
    return trace | _make_error_bars(
        series, [(None, None) if k in banded else limits for k, limits in enumerate(series.limits)]
    )


def _make_pattern(style: LineStyle) -> Figure:
    pattern = {"shape": style.pattern, "size": 6, "fillmode": "overlay"}
    return {"marker": {"pattern": pattern}} if style.pattern else {}


def _make_stack_traces(
    chart: doc.Chart, series: doc.Series, style: LineStyle, meta: Figure, lengths: Sequence[doc.Number]
) -> list[Figure]:
    """Return the pieces of lying bars, and a marker for each negative value; both show the value, not the length."""
    texts = ["" if y is None else doc.format_value(y, chart.y) for y in series.y]
    hover_texts = zip(texts, _make_hover_texts(chart, series), strict=True)
    shared: Figure = {
        "name": escape_plotly(series.name),
        "y": [round_number(x) for x in series.x],
        "hovertemplate": "<b>%{fullData.name}</b><br>%{y}: %{customdata}<extra></extra>",
        "customdata": [f"{text}{more}" for text, more in hover_texts],
        "legendgroup": str(meta["series"]),
    }
    bar = {**shared, "x": [round_number(length) for length in lengths], "type": "bar", "orientation": "h",
           "meta": {**meta, "role": "bar"}, **_make_pattern(style)}  # fmt: skip
    negative = [y if y is not None and y < 0 else None for y in series.y]
    if all(y is None for y in negative):
        return [bar]
    gain = {**shared, "x": [round_number(y) for y in negative], "type": "scatter", "mode": "markers",
            "showlegend": False, "marker": {"symbol": "diamond", "size": 9},
            "meta": {**meta, "role": "gain"}}  # fmt: skip
    return [bar, gain]


def _make_points(chart: doc.Chart, series: doc.Series) -> Figure:
    template = "%{y:.1%}" if chart.y.percent else "%{y:.4g}"
    return {
        "name": escape_plotly(series.name),
        "x": [round_number(x) for x in series.x],
        "y": [round_number(y) for y in series.y],
        "hovertemplate": f"<b>%{{fullData.name}}</b><br>%{{x}}: {template}%{{customdata}}<extra></extra>",
        "customdata": _make_hover_texts(chart, series),
    }


def _make_hover_texts(chart: doc.Chart, series: doc.Series) -> list[str]:
    """Return the lines below each point's value: its interval and its note."""
    texts = []
    for (low, high), note in zip(series.limits, itertools.chain(series.notes, itertools.repeat("")), strict=False):
        interval = ""
        if low is not None and high is not None:
            interval = f"<br>95 %: {doc.format_value(low, chart.y)} to {doc.format_value(high, chart.y)}"
        texts.append(interval + (f"<br>{escape_plotly(note)}" if note else ""))
    return texts


def _make_trace_beside(role: str, meta: Figure, x: Sequence[Any], y: Sequence[Any], **more: Any) -> Figure:
    """Return a trace that belongs to a line or bar: it has no name in the legend, and shows and hides with that."""
    return {
        "type": "scatter", "x": [round_number(value) for value in x], "y": [round_number(value) for value in y],
        "hoverinfo": "skip", "showlegend": False, "legendgroup": str(meta["series"]), "meta": {**meta, "role": role},
        **more,
    }  # fmt: skip


def _make_band(chart: doc.Chart, series: doc.Series, meta: Figure) -> list[Figure]:
    """Return one closed shape for each stretch of points with limits; None makes plotly leave a gap between two."""
    xs: list[Any] = []
    ys: list[Any] = []
    for stretch in _find_stretches(chart, series):
        if len(stretch) > 1:
            gap = [None] if xs else []
            forth, back = stretch, stretch[::-1]
            xs += [*gap, *(series.x[k] for k in (*forth, *back))]
            ys += [*gap, *(series.low[k] for k in forth), *(series.high[k] for k in back)]
    band = _make_trace_beside("band", meta, xs, ys, mode="lines", fill="toself", line={"width": 0})
    return [band] if xs else []


def _make_dots(series: doc.Series, meta: Figure) -> list[Figure]:
    """Return a trace with a dot for each repeat, so that one that differs from the others is seen."""
    if not (dots := series.list_dots()):
        return []
    x, y = zip(*dots, strict=True)
    tags = [tags for tags, values in zip(meta.get("points", ()), series.repeats, strict=False) for _ in values]
    meta = {**meta, "points": tags} if tags else meta
    marker = {"symbol": "circle", "size": 4, "opacity": 0.6}
    return [_make_trace_beside("repeat", meta, x, y, mode="markers", marker=marker)]


def _make_bar_labels(chart: doc.Chart, series: doc.Series, meta: Figure) -> list[Figure]:
    """Return the values of bars as texts above their limits and dots, which would hide a text of the bar itself."""
    if not chart.has_bar_labels:
        return []
    texts = {"text": [format_bar_label(y, chart.y) for y in series.y], "textposition": "top center",
             "textfont": {"size": 10}, "cliponaxis": False}  # fmt: skip
    marker = {"size": 8, "opacity": 0}  # which keeps the text off the limit below
    tops = series.list_tops()
    return [_make_trace_beside("label", meta, series.x, tops, mode="markers+text", marker=marker, **texts)]


def format_bar_label(y: doc.Number, axis: doc.Axis) -> str:
    """Return a value with three digits, of a share with whole per cents; empty without a value."""
    if y is None or not math.isfinite(y):
        return ""
    return f"{100 * y:.0f} %" if axis.percent else f"{y:,.0f}" if abs(y) >= 100 else f"{y:.3g}"


def _find_stretches(chart: doc.Chart, series: doc.Series) -> list[list[int]]:
    """Return runs of neighbouring points with both limits; a logarithmic axis cannot show a limit of 0 or less."""
    stretches: list[list[int]] = [[]]
    for number, (low, high) in enumerate(series.limits):
        if series.style != "line" or low is None or high is None or (chart.y.log and low <= 0):
            stretches.append([])
        else:
            stretches[-1].append(number)
    return [stretch for stretch in stretches if stretch]


def _make_error_bars(series: doc.Series, limits: Sequence[tuple[doc.Number, doc.Number]]) -> Figure:
    """Return the bars of these limits; nothing where there are none."""
    if all(low is None for low, _ in limits):
        return {}
    points = [(y, *ends) for y, ends in zip(series.y, limits, strict=True)]
    up = [None if high is None or y is None else round_number(high - y) for y, _, high in points]
    down = [None if low is None or y is None else round_number(y - low) for y, low, _ in points]
    bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 4}
    return {"error_y": bars}


def _make_axis(axis: doc.Axis, chart: doc.Chart, which: str) -> Figure:
    layout: Figure = {"title": {"text": escape_plotly(axis.title)}}
    places = list(dict.fromkeys(x for series in chart.series for x in series.x))
    has_names = any(isinstance(x, str) for x in places)
    if which == "x" and (chart.kind != "lines" or has_names):
        order = [round_number(x) for x in (places if has_names else sorted(places, key=float))]
        return layout | {"type": "category", "categoryorder": "array", "categoryarray": order}
    if axis.log:
        layout["type"] = "log"
    elif axis.from_zero:
        layout["rangemode"] = "tozero"
    if axis.percent:
        layout["tickformat"] = ".0%" if not axis.log else ".1%"
    if axis.ticks:
        layout |= {"tickmode": "array", "tickvals": [round_number(tick) for tick in axis.ticks],
                  "ticktext": [f"{tick:g}" for tick in axis.ticks] if not axis.percent else None}  # fmt: skip
    return {key: value for key, value in layout.items() if value is not None}


def escape_plotly(text: str) -> str:
    """Escape a text for plotly, which reads <b>, <a href> and entities in texts."""
    return escape(clean_text(text), quote=False)
