"""Sections as data for the page's template, which decides nothing.

The rows of tables are markup already: a template takes several times as long for their tens of thousands of cells. No
other text is markup here.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from scalebench.core.untrusted import clean_text
from scalebench.report import document as doc
from scalebench.report.html.plots import ChartStyles, make_figure
from scalebench.report.report_data import make_relative_link

MAX_TABLE_POINTS = 400  # of the table below a chart; of more it has each second, third ...
MAX_LABEL_NAMES = 12
MAX_NAME_LENGTH = 24  # of a lying bar that has room for itself and its name beside other charts
MAIN_CHARTS = ("scaling-throughput", "scaling-efficiency", "attribution-")  # how their ids begin, in their order
View = dict[str, Any]


def make_views(sections: Sequence[doc.Section], home: Path, folder: Path) -> list[View]:
    """Return the sections, in which consecutive charts are one group, and each other block has one of its own. Links of
    blocks are relative to `home`, the page is in `folder`."""
    styles = ChartStyles(block for section in sections for block in section.blocks if isinstance(block, doc.Chart))
    views = []
    for section in lift_main_charts(sections):
        groups: list[list[View]] = []
        for block in section.blocks:
            view: View = {"kind": type(block).__name__.lower(), "block": block}
            if isinstance(block, doc.Chart):
                view |= _make_chart(block, styles)
            elif isinstance(block, doc.Table):
                view |= _make_table(block, home, folder)
            else:
                view["tags"] = select_filter_tags(block.tags)
            if groups and view["kind"] == "chart" == groups[-1][0]["kind"]:
                groups[-1].append(view)
            else:
                groups.append([view])
        views.append({"id": section.id, "title": section.title, "folded": section.folded, "groups": groups})
    return views


def _make_chart(chart: doc.Chart, styles: ChartStyles) -> View:
    step = max(1, math.ceil(sum(len(series.x) for series in chart.series) / MAX_TABLE_POINTS))
    limits, notes = any(series.low for series in chart.series), any(any(series.notes) for series in chart.series)
    return {
        "wide": chart.kind == "stacked" and any(len(str(x)) > MAX_NAME_LENGTH for x in chart.series[0].x),
        "label": make_label(chart), "data": dump_json(make_figure(chart, styles.of(chart))), "step": step,
        "limits": limits, "notes": notes,
        "series": [
            {"name": series.name, "tags": select_filter_tags(series.tags),
             "rows": _render_points(chart, series, step, limits, notes)}
            for series in chart.series
        ],
    }  # fmt: skip


def _make_table(table: doc.Table, home: Path, folder: Path) -> View:
    numeric = [column in table.numeric for column in table.columns]

    def render_cell(cell: doc.Cell, right: bool) -> str:
        text, start = _escape(cell.text), '<td class="right"' if right else "<td"
        if cell.chip:
            text = f'<span class="chip {cell.chip}">{text}</span>'
        if cell.note:
            start = f'{start} title="{_escape(cell.note)}"'
        if cell.link:
            text = f'<a href="{_escape(make_relative_link(cell.link, home, folder))}">{text}</a>'
        if cell.value is None or (value := str(cell.value)) == cell.text:
            return f"{start}>{text}"
        return f'{start} data-value="{_escape(value)}">{text}'

    rows = "".join(
        f"<tr{_render_tags(row.tags)}>{''.join(map(render_cell, row.cells, numeric))}\n" for row in table.rows
    )
    return {"columns": list(zip(table.columns, numeric, strict=True)), "rows": Markup(rows)}


def render_table(table: doc.Table) -> str:
    """Return a table as HTML that stands by itself, such as below a cell of a notebook."""
    sides = ["right" if column in table.numeric else "left" for column in table.columns]
    lines = [("th", table.columns), *(("td", [cell.text for cell in row.cells]) for row in table.rows)]
    rows = []
    for tag, texts in lines:
        cells = zip(sides, texts, strict=True)
        rows.append("".join(f'<{tag} style="text-align: {side}">{_escape(text)}</{tag}>' for side, text in cells))
    notes = [table.caption, *(f"{mark} {text}" for mark, text in table.footnotes)]
    paragraphs = [f"<p>{_escape(note)}</p>" for note in notes if note]
    return "".join(["<table>", *(f"<tr>{row}</tr>" for row in rows), "</table>", *paragraphs])


def lift_main_charts(sections: Sequence[doc.Section]) -> list[doc.Section]:
    """Return the sections with the main charts moved below the first verdict.

    That verdict is on the group of these charts: groups with several devices come first, and there is one of them.
    Where there are more, `scaling` is open, and the charts stay below the names of their groups.
    """
    by_id = {section.id: section for section in sections}
    answer, scaling = by_id.get("answer"), by_id.get("scaling")
    verdict = next((block for block in answer.blocks if isinstance(block, doc.Verdict)), None) if answer else None
    if verdict is None or scaling is None or not scaling.folded:
        return list(sections)
    charts = [block for section in sections for block in section.blocks if isinstance(block, doc.Chart)]
    lifted = [chart for start in MAIN_CHARTS for chart in [each for each in charts if each.id.startswith(start)][:1]]
    moved = []
    for section in sections:
        left = [block for block in section.blocks if block not in lifted]
        blocks = [block for block, after in itertools.zip_longest(left, left[1:])
                  if not _is_heading(block) or (after is not None and not _is_heading(after))]  # fmt: skip
        if section is answer:
            place = blocks.index(verdict) + 1
            blocks[place:place] = lifted
        moved += [replace(section, blocks=blocks)] if blocks else []
    return moved


def _is_heading(block: doc.Block) -> bool:
    return isinstance(block, doc.Paragraph) and block.kind == "heading"


def dump_json(data: Any) -> Markup:
    """Return JSON that can neither end the script that contains it nor begin a comment, in ASCII."""
    return htmlsafe_json_dumps(data, json.dumps, separators=(",", ":"), allow_nan=False)


def list_filters(sections: Iterable[doc.Section]) -> dict[str, list[str]]:
    """Return the sorted values of each tag that has two or more."""
    values: dict[str, set[str]] = {name: set() for name in doc.TAG_COLUMNS}
    for block in (block for section in sections for block in section.blocks):
        if isinstance(block, doc.Chart):
            tags_of_block = [tags for series in block.series for tags in (series.tags, *series.point_tags)]
        else:
            tags_of_block = [row.tags for row in block.rows] if isinstance(block, doc.Table) else [block.tags]
        for name, value in (item for tags in tags_of_block for item in select_filter_tags(tags).items()):
            values[name].add(value)
    return {name: sorted(each) for name, each in values.items() if len(each) > 1}


def select_filter_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: str(tags[name]) for name in doc.TAG_COLUMNS if tags.get(name)}


def make_label(chart: doc.Chart) -> str:
    """Return what a screen reader says instead of the drawing; the values are in the table below it."""
    names = list(dict.fromkeys(series.name for series in chart.series))
    more = f" and {len(names) - MAX_LABEL_NAMES} more" if len(names) > MAX_LABEL_NAMES else ""
    text = ", ".join(names[:MAX_LABEL_NAMES]) + more
    return f"{chart.title}: {chart.y.title} against {chart.x.title}, {text}. The values are in the table below."


def format_number(number: float | str | None, axis: doc.Axis) -> str:
    if number is None or isinstance(number, str):
        return number or ""
    return f"{100 * number:.5g} %" if axis.percent else f"{number:.6g}"


def _render_points(chart: doc.Chart, series: doc.Series, step: int, limits: bool, notes: bool) -> Markup:
    rows = []
    for k in range(0, len(series.x), step):
        figures = [format_number(series.x[k], chart.x), format_number(series.y[k], chart.y)]
        if limits:
            figures += [format_number(limit, chart.y) for limit in series.limits[k]]
        note = f'<td class="note-text">{_escape(series.notes[k] if k < len(series.notes) else "")}' if notes else ""
        tags = _render_tags(series.point_tags[k]) if k < len(series.point_tags) else ""
        rows.append(f"<tr{tags}>{''.join(f'<td>{_escape(figure)}' for figure in figures)}{note}\n")
    return Markup("".join(rows))


def _render_tags(tags: Mapping[str, str]) -> str:
    attributes = [f' data-{name}="{_escape(text)}"' for name, text in select_filter_tags(tags).items()]
    return f" data-tagged{''.join(attributes)}" if attributes else ""


@functools.lru_cache(maxsize=10_000)  # most cells of a column are alike
def _escape(text: str) -> str:
    return str(escape(clean_text(text)))
