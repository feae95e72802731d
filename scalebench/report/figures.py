"""Every chart of a report as PNG and SVG, for papers. Layer 3.

Through matplotlib's objects alone: no pyplot, no window, and the same figures give the same files.

Lines, bands and bars of a chart on matplotlib's axes. Layer 3.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError
from scalebench.report.document import Axis, Chart, Number, Series
from scalebench.report.html.escaping import clean
from scalebench.report.html.plots import Look, Looks
from scalebench.report.report_data import Evidence
from scalebench.report.sections import sections

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
    ys = [_paper_marks_figure(y) for y in series.y]
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
    return _paper_marks_figure(limits[number]) if number < len(limits) else math.nan


def _paper_marks_figure(value: Number) -> float:
    """A gap where nothing was measured."""
    return math.nan if value is None or math.isinf(value) else float(value)


COLUMN_IN, PAGE_IN = 3.5, 7.2  # widths of a column and of a page with two of them
HEIGHT_IN, LEGEND_ROW_IN = 2.3, 0.16
TITLE_LINE_IN, SLANTED_IN = 0.13, 0.7  # what a further line of the title takes, and names below bars
CHARACTERS_AN_INCH = 12  # of a title
DPI = 300
INSIDE = 4  # series whose legend finds room among them
WIDE = 8  # places of bars, above which a column is too narrow
FORMATS = ("png", "svg")
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "path",  # looks alike everywhere
    "svg.hashsalt": "scalebench",
    "text.parse_math": False,  # a dollar in a name is a dollar
}


def write(evidence: Evidence, folder: Path) -> list[Path]:
    """<id>.png and <id>.svg of every chart with a figure, in `folder`, which is made. InputError without matplotlib."""
    return save([block for one in sections(evidence) for block in one.blocks if isinstance(block, Chart)], folder)


def save(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """The files of these charts, in their order."""
    figure_type = _figure_type()
    folder.mkdir(parents=True, exist_ok=True)
    looks = Looks(charts)
    written = []
    with _style():
        for chart in charts:
            if not any(y is not None for one in chart.series for y in one.y):
                continue
            figure = _figure(chart, looks.of(chart), figure_type)
            for kind in FORMATS:
                written.append(folder / f"{chart.id}.{kind}")
                # The date, and the version of matplotlib, would make two files of the same figures differ.
                metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
                figure.savefig(written[-1], format=kind, dpi=DPI, metadata=metadata)
    return written


def _figure_type() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise InputError("figures need matplotlib; install it: pip install 'scalebench[figures]'") from e
    return Figure


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}), warnings.catch_warnings():
        # A name in letters that the font has not is drawn as boxes; that is no reason to stop.
        warnings.filterwarnings("ignore", message=".*Glyph.*missing from.*")
        warnings.filterwarnings("ignore", message=".*Matplotlib currently does not support.*natively.*")
        yield


def _figure(chart: Chart, looks: Sequence[Look], figure_type: Any) -> Any:
    drawn = [(one, look) for one, look in zip(chart.series, looks, strict=True) if any(y is not None for y in one.y)]
    across, width, height, title = _layout(chart, [one for one, _ in drawn])
    figure = figure_type(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _axis(axes, "x", chart.x, [x for one, _ in drawn for x in one.x if not isinstance(x, str)])
    _axis(axes, "y", chart.y, [y for one, _ in drawn for y in one.y if y is not None])
    handles = draw(axes, chart, drawn)
    _from_zero(axes, chart)
    axes.set_title(title)
    # matplotlib leaves out what begins with an underscore.
    labels = [
        _text(one.name).replace("_", " _", 1) if one.name.startswith("_") else _text(one.name) for one, _ in drawn
    ]
    if across:
        figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False)
    elif len(drawn) > 1 or (drawn and drawn[0][0].name != chart.title):
        axes.legend(handles, labels, loc="best", framealpha=0.7, edgecolor="none")
    return figure


def _layout(chart: Chart, drawn: Sequence[Series]) -> tuple[int, float, float, str]:
    """(columns of the legend below, 0 for one within; width and height in inches; the title in lines that fit)."""
    places = {x for one in drawn for x in one.x} if chart.kind != "lines" else set()
    width = PAGE_IN if len(places) > WIDE or any(len(one.name) > 30 for one in drawn) else COLUMN_IN
    across = (4 if width == PAGE_IN else 2) if len(drawn) > INSIDE else 0
    rows = -(-len(drawn) // across) if across else 0
    slanted = SLANTED_IN if any(isinstance(x, str) for x in places) else 0.0
    title = textwrap.wrap(_text(chart.title), int(width * CHARACTERS_AN_INCH))
    height = HEIGHT_IN + slanted + len(title[1:]) * TITLE_LINE_IN + rows * LEGEND_ROW_IN
    return across, width, height, "\n".join(title)


def _axis(axes: Any, which: str, axis: Axis, figures: Iterable[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    getattr(axes, f"set_{which}label")(_text(axis.title))
    side = axes.xaxis if which == "x" else axes.yaxis
    log = axis.log and all(figure > 0 for figure in figures)  # what is 0 or less has no logarithm
    if log:
        getattr(axes, f"set_{which}scale")("log")
    if axis.ticks is not None:
        side.set_major_locator(FixedLocator(list(axis.ticks)))
        side.set_minor_locator(NullLocator())
    if log or axis.ticks is not None:
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if axis.percent:
        side.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _from_zero(axes: Any, chart: Chart) -> None:
    if chart.y.from_zero and axes.get_yscale() == "linear" and axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    if chart.kind != "lines" and axes.get_ylim()[0] < 0:
        axes.axhline(0, color="black", linewidth=0.6)


def _text(text: str) -> str:
    return " ".join(str(clean(text)).split())
