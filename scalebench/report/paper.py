"""Every chart of a report as PNG and SVG, for papers. Layer 3.

Through matplotlib's objects alone: no pyplot, no window, and the same figures give the same files.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalebench.report.blocks import Axis, Chart, Series
from scalebench.report.evidence import Evidence
from scalebench.report.html.escaping import clean
from scalebench.report.html.looks import Look, Looks
from scalebench.report.paper_marks import draw
from scalebench.report.sections import sections
from scalebench.spec import InputError

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
