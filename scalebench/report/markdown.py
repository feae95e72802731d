"""A report as GitHub Markdown, for a pull request, a wiki or a terminal. Charts become tables of their figures.

Texts of results stay text, whatever they contain. Rules: GitHub Flavored Markdown Spec 0.29,
https://github.github.com/gfm/: backslash escapes (6.1), autolinks (6.9).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape as escape_tags
from pathlib import Path

from scalebench.core.untrusted import clean_line, clean_text
from scalebench.report import document as doc
from scalebench.report.report_data import ReportData, make_relative_link
from scalebench.report.sections import make_sections

MAX_CHART_ROWS = 40  # Nobody reads a longer table of a chart.
LANGUAGES = {"log": "text"}
ALERTS = {"warning": "> [!WARNING]\n> "}  # GitHub's own markup.
SPECIAL = re.compile(r"[\\`*\[\]|~$#]")
EDGE_UNDERSCORES = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # within a word, as in ddp_gloo, it is a letter
LINE_STARTS = re.compile(r"^(\d+)([.)](?:\s|$))|^([-+=:])")  # lists, underlines of headings, rows of tables
BREAK = "<!-- -->"  # It is invisible, and text that it splits is not an address.
ADDRESSES = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w.-])|(?<=mailto)(?=:)|(?<=xmpp)(?=:)", re.IGNORECASE)
FENCE = re.compile(r"`+")


def write(report_data: ReportData, path: Path) -> Path:
    """Write the report to `path`, whose folder is made if necessary, with links relative to it. Returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    home = report_data.home if report_data.paths else path.parent
    text = render_document(list(make_sections(report_data)), len(report_data.frame), home, path.parent)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def render_document(sections: Sequence[doc.Section], runs: int, home: Path, folder: Path) -> str:
    """Render a report for a file in `folder`; links of its cells are relative to `home`."""
    heading = f"# scalebench: {runs:,} {'run' if runs == 1 else 'runs'}"
    parts = [heading]
    for section in sections:
        parts.append(f"## {escape(section.title)}")
        parts += [part for block in section.blocks for part in render_block(block, home, folder)]
    return "\n\n".join(parts) + "\n"


def render_block(block: doc.Block, home: Path = Path(), folder: Path = Path()) -> Iterator[str]:
    """Yield the paragraphs of a block for a file in `folder`; links of its cells are relative to `home`."""
    if isinstance(block, doc.Paragraph):
        if block.kind in ("heading", "label"):
            yield f"### {escape(block.text)}"
        elif text := escape_paragraph(block.text):
            yield f"**{text}**" if block.kind == "answer" else ALERTS.get(block.kind, "") + text
    elif isinstance(block, doc.Verdict):
        yield from _render_verdict(block)
    elif isinstance(block, doc.Code):
        yield from _render_code(block)
    else:
        yield f"### {escape(block.title)}"
        yield render_table(block, home, folder) if isinstance(block, doc.Table) else _render_chart(block)
        if block.caption:
            yield escape_paragraph(block.caption)
        if isinstance(block, doc.Table) and block.footnotes:
            yield "\n".join(f"- {escape(mark)}: {escape(text)}" for mark, text in block.footnotes)


def _render_verdict(block: doc.Verdict) -> Iterator[str]:
    if block.group:
        yield f"### {escape(block.group)}"
    if block.doubts:
        yield ALERTS["warning"] + escape_paragraph(f"Low confidence: {'; '.join(block.doubts)}.")
    yield f"**{escape_paragraph(block.text)}**"
    tiles = []
    for tile in block.tiles:
        value = (tile.figure, tile.unit, tile.interval and f"({tile.interval})")
        tiles.append([escape(text) for text in (tile.name, " ".join(filter(None, value)), tile.note)])
    if tiles:
        yield make_table(["figure", "value (95 %)", "of"], tiles, [False, False, False])
    if block.reason:
        yield escape_paragraph(block.reason)


def _render_code(block: doc.Code) -> Iterator[str]:
    code = fence(block.text, LANGUAGES.get(block.language, block.language))
    if block.language == "log":  # It is folded away, as on the page.
        title = escape_tags(clean_line(block.title or "log"), quote=False)
        yield f"<details><summary>{title}</summary>\n\n{code}\n\n</details>"
        return
    if block.title:
        yield f"{escape_paragraph(block.title)}:"
    yield code


def render_table(block: doc.Table, home: Path = Path(), folder: Path = Path()) -> str:
    """Render a table for a file in `folder`; links of its cells are relative to `home`."""
    rows = [[_render_cell(cell, home, folder) for cell in row.cells] for row in block.rows]
    numeric = [name in block.numeric for name in block.columns]
    return make_table([escape(name) for name in block.columns], rows, numeric)


def _render_cell(cell: doc.Cell, home: Path, folder: Path) -> str:
    text = escape(cell.text)
    if cell.link is None or not text:
        return text
    target = make_relative_link(cell.link, home.resolve(), folder.resolve()).replace("(", "%28").replace(")", "%29")
    return f"[{text}]({target})"


def _render_chart(chart: doc.Chart) -> str:
    """Render the series as columns if they share their x, else one below the other."""
    places = list(dict.fromkeys(x for series in chart.series for x in series.x))
    if not any(isinstance(x, str) for x in places):
        places.sort()
    longest = max((len(series.x) for series in chart.series), default=0)
    if len(places) <= min(MAX_CHART_ROWS, 2 * longest):
        rows = []
        for x in places:
            row = [_format_x(x, chart.x)]
            for series in chart.series:  # Several points may be above each other.
                values = (_format_point(series, k, chart.y) for k, place in enumerate(series.x) if place == x)
                row.append(", ".join(filter(None, values)))
            rows.append(row)
        names = [escape(series.name) for series in chart.series]
        return make_table([escape(chart.x.title), *names], rows, [True] * (1 + len(names)))
    max_points = max(4, MAX_CHART_ROWS // max(1, len(chart.series)))
    rows = []
    for series in chart.series:
        numbers = [(float(k), y) for k, y in enumerate(series.y) if y is not None]
        for k in (int(number) for number, _ in doc.downsample(numbers, max_points)):
            rows.append([escape(series.name), _format_x(series.x[k], chart.x), _format_point(series, k, chart.y)])
    table = make_table(["series", escape(chart.x.title), escape(chart.y.title)], rows, [False, True, True])
    points = sum(len(series.x) for series in chart.series)
    return table if len(rows) == points else f"{table}\n\n{len(rows)} of {points:,} points."


def _format_point(series: doc.Series, k: int, axis: doc.Axis) -> str:
    """Return `0.93 [0.91, 0.95]`, in per cent `93.0 % [91.0, 95.0]`."""
    y, (low, high) = series.y[k], series.limits[k]
    if y is None:
        return ""
    limits = [doc.format_value(limit, axis).removesuffix(" %") for limit in (low, high) if limit is not None]
    return escape(doc.format_value(y, axis) + (f" [{', '.join(limits)}]" if limits else ""))


def _format_x(x: float | str, axis: doc.Axis) -> str:
    return escape(x if isinstance(x, str) else doc.format_value(x, axis))


def escape(text: str) -> str:
    """Return one line that shows `text` in a heading or a cell of a table: without markup, HTML and links."""
    line = ADDRESSES.sub("\0", clean_line(text))
    line = escape_tags(SPECIAL.sub(r"\\\g<0>", line), quote=False)
    return EDGE_UNDERSCORES.sub(r"\\_", line).replace("\0", BREAK)


def escape_paragraph(text: str) -> str:
    """Escape a text at the beginning of a line, where more characters have a meaning."""
    return LINE_STARTS.sub(r"\1\\\2\3", escape(text))


def fence(text: str, language: str) -> str:
    """Return a block of code whose fence is longer than any within it."""
    body = clean_text(text).rstrip("\n")
    longest = max((len(run) for run in FENCE.findall(body)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{body}\n{marks}"


def make_table(columns: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    """Make a table of cells that are already escaped."""
    rule = ["---:" if number else "---" for number in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, rule, *rows])
