"""A report as GitHub Markdown: for a pull request, a wiki, a terminal. Layer 3.

Charts are tables of their figures here.

Text of results on its way into Markdown: it stays text, whatever somebody wrote into it. Layer 3.

Rules: GitHub Flavored Markdown Spec 0.29, https://github.github.com/gfm/: backslash escapes (6.1), autolinks (6.9).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalebench.report.document import Axis, Block, Cell, Chart, Code, Number, Section, Series, Table, Words, thin
from scalebench.report.html.escaping import clean, relative
from scalebench.report.report_data import Evidence
from scalebench.report.sections import sections

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
SPECIAL = re.compile(r"[\\`*\[\]|~$#]")
EDGES = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # within a word, as in ddp_gloo, it is a letter
BEGINS = re.compile(r"^(\d+)([.)](?:\s|$))|^([-+=:])")  # lists, underlines of headings, rows of tables
BREAK = "<!-- -->"  # invisible; what stands apart is no address
ADDRESSES = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w.-])|(?<=mailto)(?=:)|(?<=xmpp)(?=:)", re.IGNORECASE)
FENCE = re.compile(r"`+")


def escape(text: str) -> str:
    """One line that shows `text` in a heading or a cell of a table: no markup, no HTML, no link."""
    line = ADDRESSES.sub("\0", " ".join(str(clean(text)).split()))
    line = SPECIAL.sub(r"\\\g<0>", "".join(ENTITIES.get(sign, sign) for sign in line))
    return EDGES.sub(r"\\_", line).replace("\0", BREAK)


def paragraph(text: str) -> str:
    """The same at the beginning of a line, where a few signs more mean something."""
    return BEGINS.sub(r"\1\\\2\3", escape(text))


def html(text: str) -> str:
    """For the few tags that Markdown has no sign for."""
    return "".join(ENTITIES.get(sign, sign) for sign in " ".join(str(clean(text)).split()))


def fenced(text: str, language: str) -> str:
    """A block of code whose fence is longer than any within it."""
    body = str(clean(text)).replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    longest = max((len(run) for run in FENCE.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(columns: list[str], rows: list[list[str]], right: list[bool]) -> str:
    """Cells are escaped already; `right` says which columns have figures."""
    rule = ["---:" if number else "---" for number in right]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, rule, *rows])


MOST_POINTS = 40  # of a chart; more are no table to read
LANGUAGES = {"log": "text"}
ALERTS = {"warning": "> [!WARNING]\n> "}  # GitHub's own sign for them


def write(evidence: Evidence, path: Path) -> Path:
    """The report at `path`, whose folder is made; links are relative to it. Gives `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first = evidence.paths[0] if evidence.paths else path.parent
    home = first.parent if first.is_file() else first
    text = document(list(sections(evidence)), len(evidence.frame), home, path.parent)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def document(found: Sequence[Section], runs: int, home: Path, beside: Path) -> str:
    """All of a report; links of its cells lead from `home`, and from a page in `beside` in what comes out."""
    head = f"# scalebench: {runs:,} {'run' if runs == 1 else 'runs'}"
    return "\n\n".join([head, *(part for one in found for part in _section(one, home, beside))]) + "\n"


def _section(section: Section, home: Path, beside: Path) -> Iterator[str]:
    yield f"## {escape(section.title)}"
    for block in section.blocks:
        yield from _block(block, home, beside)


def _block(block: Block, home: Path, beside: Path) -> Iterator[str]:
    if isinstance(block, Words):
        if text := paragraph(block.text):
            yield f"**{text}**" if block.kind == "answer" else ALERTS.get(block.kind, "") + text
    elif isinstance(block, Code):
        yield from _code(block)
    elif isinstance(block, Table):
        yield f"### {escape(block.title)}"
        yield _table(block, home, beside)
        yield from _caption(block.caption)
    else:
        yield f"### {escape(block.title)}"
        yield _figures(block)
        yield from _caption(block.caption)


def _caption(text: str) -> Iterator[str]:
    if text:
        yield paragraph(text)


def _code(block: Code) -> Iterator[str]:
    code = fenced(block.text, LANGUAGES.get(block.language, block.language))
    if block.language == "log":  # folded away, as in the page
        yield f"<details><summary>{html(block.title or 'log')}</summary>\n\n{code}\n\n</details>"
        return
    if block.title:
        yield f"{paragraph(block.title)}:"
    yield code


def _table(block: Table, home: Path, beside: Path) -> str:
    rows = [[_cell(cell, home, beside) for cell in row.cells] for row in block.rows]
    right = [name in block.numeric for name in block.columns]
    return table([escape(name) for name in block.columns], rows, right)


def _cell(cell: Cell, home: Path, beside: Path) -> str:
    text = escape(cell.text)
    if cell.link is None or not text:
        return text
    target = relative(cell.link, home.resolve(), beside.resolve()).replace("(", "%28").replace(")", "%29")
    return f"[{text}]({target})"


def _figures(chart: Chart) -> str:
    """Each series a column where they share their x, else one below the other."""
    places = _places(chart)
    longest = max((len(series.x) for series in chart.series), default=0)
    if len(places) <= min(MOST_POINTS, 2 * longest):
        rows = [[_place(x, chart.x), *(_at(series, x, chart.y) for series in chart.series)] for x in places]
        names = [escape(series.name) for series in chart.series]
        return table([escape(chart.x.title), *names], rows, [True] * (1 + len(names)))
    rows = [row for series in chart.series for row in _below(series, chart, MOST_POINTS // max(1, len(chart.series)))]
    columns = ["series", escape(chart.x.title), escape(chart.y.title)]
    made = table(columns, rows, [False, True, True])
    points = sum(len(series.x) for series in chart.series)
    return made if len(rows) == points else f"{made}\n\n{len(rows)} of {points:,} points."


def _places(chart: Chart) -> list[float | str]:
    """Every x, once: numbers in their order, words as they come."""
    found = list(dict.fromkeys(x for series in chart.series for x in series.x))
    return found if any(isinstance(x, str) for x in found) else sorted(found)


def _below(series: Series, chart: Chart, most: int) -> Iterator[list[str]]:
    numbers = [(float(k), y) for k, y in enumerate(series.y) if y is not None]
    for k, _ in thin(numbers, max(4, most)):
        x = series.x[int(k)]
        yield [escape(series.name), _place(x, chart.x), _value(series, int(k), chart.y)]


def _at(series: Series, x: float | str, axis: Axis) -> str:
    """All figures of a series there: points may stand above each other."""
    return ", ".join(filter(None, (_value(series, k, axis) for k, place in enumerate(series.x) if place == x)))


def _value(series: Series, k: int, axis: Axis) -> str:
    """`0.93 [0.91, 0.95]`, in per cent `93.0 % [91.0, 95.0]`."""
    y, low, high = (limits[k] if k < len(limits) else None for limits in (series.y, series.low, series.high))
    if y is None:
        return ""
    text = f"{_number(y, axis)} %" if axis.percent else _number(y, axis)
    return escape(text if low is None or high is None else f"{text} [{_number(low, axis)}, {_number(high, axis)}]")


def _place(x: float | str, axis: Axis) -> str:
    return escape(x if isinstance(x, str) else _number(x, axis) + (" %" if axis.percent else ""))


def _number(value: Number, axis: Axis) -> str:
    if value is None:
        return ""
    if axis.percent:
        return f"{100 * value:z.1f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
