"""Every chart of a report as PNG and SVG, for papers.

Uses matplotlib's objects alone: no pyplot, no window, and the same figures give the same files.
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
from scalebench.core.untrusted import clean_line
from scalebench.report import document as doc
from scalebench.report.html.plots import MAX_MARKED_POINTS, ChartStyles, LineStyle, format_bar_label
from scalebench.report.report_data import ReportData
from scalebench.report.sections import make_sections

COLUMN_IN, PAGE_IN = 3.5, 7.2  # widths of a column and of a page with two of them
HEIGHT_IN, LEGEND_ROW_IN = 2.3, 0.16
TITLE_LINE_IN, SLANTED_NAMES_IN = 0.13, 0.7  # height of each further line of the title, and of slanted names below bars
BAR_IN = 0.2  # height of each further lying bar
CHARACTERS_PER_INCH = 12  # How many of a title fit.
DOTS_PER_INCH = 300
MAX_COLUMN_BARS, MAX_COLUMN_NAME = 8, 30  # places of bars, and characters of a name, for which a column is wide enough
LABEL_SIZE = 5.5  # points, of the values above bars
FORMATS = ("png", "svg")
STYLE: Any = {
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
    "svg.fonttype": "path",  # renders the same everywhere
    "svg.hashsalt": "scalebench",
    "text.parse_math": False,  # a dollar in a name is a dollar
}
# M. Okabe, K. Ito, Color Universal Design (2008): distinguishable with any kind of colour vision. Yellow is the last,
# since it is hardly visible on paper.
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #F0E442".split()
GREY = "#888888"
# The colours of document.PARTS are those of page.css.
PART_COLOURS = "#5aa77a #3b82c4 #b5dcc2 #7fc09a #2e7d52 #e07b1a #f2c14e #c43b3b #8e5bb5 #8a6d4b #a3abb8".split()
DASHES: dict[str, Any] = {
    "solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)), "longdashdot": (0, (9, 3, 1, 3)),
}  # fmt: skip
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "star": "*",
    "hexagon": "h", "cross": "P",
}  # fmt: skip
HATCHES = {"": "", "/": "///", "\\": "\\\\\\", ".": "...", "x": "xxx", "-": "---"}
StyledSeries = Sequence[tuple[doc.Series, LineStyle]]


def write(report_data: ReportData, folder: Path) -> list[Path]:
    """Write <id>.png and <id>.svg of every chart that has a value into `folder`, which is made if necessary.

    Raises InputError if matplotlib is not installed.
    """
    blocks = (block for section in make_sections(report_data) for block in section.blocks)
    return save_charts([block for block in blocks if isinstance(block, doc.Chart)], folder)


def save_charts(charts: Sequence[doc.Chart], folder: Path) -> list[Path]:
    """Write these charts, and return the files in their order."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as e:
        raise InputError("figures need matplotlib; install it: pip install 'scalebench-train[figures]'") from e
    folder.mkdir(parents=True, exist_ok=True)
    styles = ChartStyles(charts)
    paths = []
    with _paper_style():
        for chart in charts:
            if not any(y is not None for series in chart.series for y in series.y):
                continue
            figure = _make_figure(chart, styles.of(chart))
            for kind in FORMATS:
                paths.append(folder / f"{chart.id}.{kind}")
                # The date, and the version of matplotlib, would make two files of the same figures differ.
                metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
                figure.savefig(paths[-1], format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return paths


@contextmanager
def _paper_style() -> Iterator[None]:
    import matplotlib

    settings: Any = {**matplotlib.rcParamsDefault, **STYLE}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes; that is not a reason to stop.
        warnings.filterwarnings("ignore", message=".*Glyph.*missing from.*")
        warnings.filterwarnings("ignore", message=".*Matplotlib currently does not support.*natively.*")
        yield


def _make_figure(chart: doc.Chart, styles: Sequence[LineStyle]) -> Any:
    from matplotlib.figure import Figure

    pairs = zip(chart.series, styles, strict=True)
    visible = [(series, style) for series, style in pairs if any(y is not None for y in series.y)]
    places = {x for series, _ in visible for x in series.x} if chart.kind != "lines" else set()
    bars = sum(len(series.x) for series, _ in visible) if chart.kind == "bars" else 0
    is_wide = len(places) > MAX_COLUMN_BARS or bars > 2 * MAX_COLUMN_BARS
    is_wide |= any(len(series.name) > MAX_COLUMN_NAME for series, _ in visible)
    width, legend_columns = (PAGE_IN, 4) if is_wide else (COLUMN_IN, 2)
    title = textwrap.wrap(clean_line(chart.title), int(width * CHARACTERS_PER_INCH))
    height = HEIGHT_IN + len(title[1:]) * TITLE_LINE_IN + -(-len(visible) // legend_columns) * LEGEND_ROW_IN
    if chart.kind == "stacked":
        height += max(0, len(places) - MAX_COLUMN_BARS) * BAR_IN
    elif any(isinstance(x, str) for x in places):
        height += SLANTED_NAMES_IN
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    xs = [x for series, _ in visible for x in series.x if not isinstance(x, str)]
    ys = [y for series, _ in visible for y in series.y if y is not None]
    across, up = ("y", "x") if chart.kind == "stacked" else ("x", "y")  # bars of a stack lie
    _set_axis(axes, across, chart.x, xs)
    _set_axis(axes, up, chart.y, ys)
    if chart.kind == "lines":
        handles = [_draw_line(axes, series, style) for series, style in visible]
    else:
        handles = (_draw_stack if chart.kind == "stacked" else _draw_bars)(axes, chart, visible)
    if chart.kind != "stacked":
        if chart.y.from_zero and axes.get_yscale() == "linear" and axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)
        if chart.kind == "bars" and axes.get_ylim()[0] < 0:
            axes.axhline(0, color="black", linewidth=0.6)
    axes.set_title("\n".join(title))
    # matplotlib leaves out labels that begin with an underscore.
    names = [clean_line(series.name) for series, _ in visible]
    labels = [f" {name}" if name.startswith("_") else name for name in names]
    if len(visible) > 1 or visible[0][0].name != chart.title:
        figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns, frameon=False)
    return figure


def _set_axis(axes: Any, which: str, axis: doc.Axis, figures: Iterable[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    getattr(axes, f"set_{which}label")(clean_line(axis.title))
    side = axes.xaxis if which == "x" else axes.yaxis
    log = axis.log and all(figure > 0 for figure in figures)  # values of 0 or less have no logarithm
    if log:
        getattr(axes, f"set_{which}scale")("log")
    if axis.ticks is not None:
        side.set_major_locator(FixedLocator(list(axis.ticks)))
        side.set_minor_locator(NullLocator())
    if log or axis.ticks is not None:
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if axis.percent:
        side.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _get_colour(style: LineStyle) -> str:
    return GREY if style.slot is None else [*COLOURS, *PART_COLOURS][style.slot]


def _draw_line(axes: Any, series: doc.Series, style: LineStyle) -> Any:
    ys = [_to_float(y) for y in series.y]
    if series.style == "ideal":
        (handle,) = axes.plot(series.x, ys, color=GREY, linestyle="--", linewidth=0.8, zorder=1)
        return handle
    only_points, is_open = series.style == "points", style.symbol.endswith("-open")
    marker = MARKERS[style.symbol.removesuffix("-open")] if only_points or len(ys) <= MAX_MARKED_POINTS else ""
    colour = _get_colour(style)
    (handle,) = axes.plot(
        series.x, ys, color=colour, marker=marker, linestyle="none" if only_points else DASHES[style.dash],
        markerfacecolor="white" if is_open else colour,
    )  # fmt: skip
    if series.fit:
        axes.plot(series.x, series.fit, color=colour, linestyle=DASHES["dot"], linewidth=0.8)
    _draw_spread(axes, series.x, series, colour, has_band=not only_points and len(ys) > 1)
    return handle


def _draw_bars(axes: Any, chart: doc.Chart, visible: StyledSeries) -> list[Any]:
    """Draw bars side by side, with their values above them if there are few."""
    places = list(dict.fromkeys(x for series, _ in visible for x in series.x))
    if not any(isinstance(x, str) for x in places):
        places.sort()
    width, handles = 0.8 / len(visible), []
    for number, (series, style) in enumerate(visible):
        xs = [places.index(x) + (number - (len(visible) - 1) / 2) * width for x in series.x]
        handles.append(axes.bar(xs, [y or 0.0 for y in series.y], width, color=_get_colour(style),
                                hatch=HATCHES[style.pattern], edgecolor="white", linewidth=0.4))  # fmt: skip
        _draw_spread(axes, xs, series, "black")
        for x, y, top in zip(xs, series.y, series.list_tops(), strict=True) if chart.has_bar_labels else ():
            label = format_bar_label(y, chart.y)
            axes.annotate(label, (x, top), (0, 2), textcoords="offset points", ha="center", fontsize=LABEL_SIZE)
    words = [x if isinstance(x, str) else f"{x:g}" for x in places]
    crowded = sum(map(len, words)) > 40
    axes.set_xticks(range(len(words)), words, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.grid(False, axis="x")
    return handles


def _draw_spread(axes: Any, xs: Sequence[Any], series: doc.Series, colour: str, has_band: bool = False) -> None:
    """Draw a dot for each repeat, and the limits of each point."""
    if dots := series.list_dots(xs):
        x, y = zip(*dots, strict=True)
        axes.plot(x, y, color=colour, linestyle="none", marker=".", markersize=3, alpha=0.6)
    if all(low is None for low, _ in series.limits):
        return
    ys, low, high = ([_to_float(value) for value in ends] for ends in (series.y, *zip(*series.limits, strict=True)))
    if has_band:
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
        return
    below, above = ([abs(end - y) for y, end in zip(ys, ends, strict=True)] for ends in (low, high))
    axes.errorbar(xs, ys, (below, above), fmt="none", ecolor=colour, elinewidth=0.9, capsize=1.5)


def _draw_stack(axes: Any, chart: doc.Chart, visible: StyledSeries) -> list[Any]:
    """Draw lying bars, the first one on top, and a marker for each negative value."""
    places = list(dict.fromkeys(x for series in chart.series for x in series.x))
    ends: dict[Any, float] = dict.fromkeys(places, 0.0)
    lengths = {id(series): each for series, each in zip(chart.series, doc.stack_lengths(chart), strict=True)}
    handles = []
    for series, style in visible:
        pieces = [length or 0.0 for length in lengths[id(series)]]
        begins = [ends[x] for x in series.x]
        ends |= {x: begin + length for x, begin, length in zip(series.x, begins, pieces, strict=True)}
        rows, colour = [places.index(x) for x in series.x], _get_colour(style)
        handles.append(axes.barh(rows, pieces, 0.7, begins, color=colour, hatch=HATCHES[style.pattern],
                                 edgecolor="white", linewidth=0.4))  # fmt: skip
        negative = [(y, row) for y, row in zip(series.y, rows, strict=True) if y is not None and y < 0]
        if negative:
            axes.plot(*zip(*negative, strict=True), color=colour, linestyle="none", marker="D", markersize=4)
    axes.set_yticks(range(len(places)), [clean_line(str(x)) for x in places])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    return handles


def _to_float(value: doc.Number) -> float:
    """Return NaN, which is a gap, if nothing was measured."""
    return math.nan if value is None or math.isinf(value) else float(value)
