"""The table of runs in a terminal: six columns that fit 80 characters, with remarks as footnotes; all figures on
request.

Names, settings and intervals are never cut or broken: a table that does not fit gets narrower gaps, then loses the
limits of speedups and the gaps between footnote letters, and is at last wider than the window.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis.identity import KEY_VALUE_COLUMNS
from scalebench.analysis.scaling_curves import format_batch, plain_rows
from scalebench.core.untrusted import clean_line, clean_text
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_intervals

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("model", "dataset", "hardware", "scaling")  # of rows below one heading
BASELINES = ("bare", "self")  # of speedups, in the order of preference
STATUS_STYLES = {"ok": "green", "unsupported": "dim", "cancelled": "yellow"}  # of the others: red
LAYOUTS = ((" ", 2), ("\n  ", 2), ("\n  ", 1))  # what stands before a setting, and characters between columns
WIDE_HEADS = {"gpus": "devices", "samples/s (95 %)": "samples/s"}  # by the heads of the page
MAX_HEAD_LINES = 2
LIMIT_START = re.compile(r" (?=[±\[])")
MIN_WIDTH = 20  # of texts that are broken between words
Cells = dict[str, Any]
Columns = Mapping[str, Sequence[str]]  # cells by head
Lines = tuple[list[str], list[list[tuple[str, str]]]]  # as `lay_out` returns them


class RunTable:
    """The rows of a pooled frame, numbered from 1 in the order in which they are shown."""

    def __init__(self, frame: pd.DataFrame, baseline_name: str | None = None) -> None:
        """`baseline_name` is the label of the baseline that the user named; speedups are then over that run."""
        self.rows = tables.drop_common_settings(plain_rows(frame.sort_values(tables.SORT_COLUMNS)))
        self._frame, self._baseline_name = frame, baseline_name
        self._varying = [name for name in tables.split_shared_columns(frame)[1] if name not in GROUP_COLUMNS]
        kinds = BASELINES if baseline_name is None else ("given",)
        self._kinds = [  # the baseline that the speedup of each row is shown over
            next((kind for kind in kinds if row[f"speedup_{kind}"] is not None), kinds[0]) for row in self.rows
        ]

    def list_lines(self, width: int, winners: Collection[str] = (), wide: bool = False) -> Iterator[Text]:
        """Yield the lines of the table, at most `width` characters long if possible; the rows with a run_id among
        `winners` are bold. With `wide` it has all figures, and is as wide as these are."""
        pairs, notes = list(zip(self.rows, self._kinds, strict=True)), tables.Footnotes()
        marks = [notes.mark(self._list_remarks(row, kind, wide)) for row, kind in pairs]
        rates = [tables.format_throughput(row, notes_repeat=False) for row in self.rows]
        if wide:
            makers = tables.make_figure_columns(self._frame, self._varying, self._baseline_name and "baseline")
            columns = {clean_line(name): [make(row).text for row in self.rows] for name, make in makers.items()}
            columns[tables.THROUGHPUT_HEAD] = rates
            figures = {WIDE_HEADS.get(name, name): cells for name, cells in columns.items()}
        else:
            figures = {
                "devices": [str(row["gpus"]) for row in self.rows],
                "samples/s": rates,
                "speedup": [_format_speedup(row, f"speedup_{kind}") for row, kind in pairs],
                "efficiency": [tables.format_percent(row[f"efficiency_{kind}"]) for row, kind in pairs],
            }
        short = {**figures, "speedup": [ratio.partition(" ")[0] for ratio in figures.get("speedup", [])]}
        joints = [" ", ""] if all(len(mark) == 1 for own in marks for mark in own) else [" "]
        labels = [[row["strategy"], *_list_settings(row, self._varying)] for row in self.rows]
        for columns, joint, (separator, gap) in (
            *itertools.product([figures], [" "], LAYOUTS), *itertools.product([short], joints, LAYOUTS),
        ):  # fmt: skip
            names = [separator.join(map(clean_line, label)) for label in labels]
            statuses = [
                f"{row['status']} {joint.join(own)}".rstrip() for row, own in zip(self.rows, marks, strict=True)
            ]
            first = {"#": [str(number + 1) for number in range(len(names))], "strategy": names}
            head, lines = lay_out({**first, **columns, "status": statuses}, {"#", *columns}, gap)
            if wide or len(head[-1]) <= width:
                break
        yield from self._arrange(head, lines, winners, width)
        for mark, remark in notes.list_notes():
            yield from wrap_text(f"{mark} {remark}", width, len(mark) + 1)
        over = (
            f"baseline: {self._baseline_name}" if self._baseline_name else ""
        )  # the heads of a wide table say the rest
        for caption in (over if wide else self._describe_speedups(), describe_intervals(self.rows)):
            yield from wrap_text(caption, width)

    def list_summary_rows(self) -> list[Cells]:
        """Return the cells of each row in the order shown, with `settings`, and speedup and efficiency as shown."""
        names = ("speedup", "efficiency")
        return [
            {**row, "settings": " ".join(_list_settings(row, self._varying)),
             **{name: row[f"{name}_{kind}"] for name in names}}
            for row, kind in zip(self.rows, self._kinds, strict=True)
        ]  # fmt: skip

    def _list_remarks(self, row: Cells, kind: str, wide: bool) -> list[str]:
        remarks = tables.list_remarks(row, explains=True)
        if row["status"] != "ok":
            return remarks
        if (row["nodes"] or 1) > 1 and not wide:
            remarks.append(f"on {row['nodes']} nodes")
        if row["interval_over"] == "blocks" and self._frame["interval_over"].dropna().nunique() > 1:
            remarks.append("its interval is over blocks of one repeat")
        if row["gpus"] > 1 and row["speedup_self"] is not None and kind == "self" and "bare" in self._kinds:
            remarks.append("speedup over the same strategy on one device")
        return remarks

    def _arrange(
        self, head: list[str], lines: list[list[tuple[str, str]]], winners: Collection[str], width: int
    ) -> Iterator[Text]:
        """Yield the head, and the rows of each group below its heading; the heading of a single group comes first."""
        groups = [tuple(row[name] for name in GROUP_COLUMNS) for row in self.rows]
        headings = {}
        for group in groups:
            # such as `materials_cnn on materials, hardware cpu, weak scaling, batch 75 per device`
            members = [row for row, own in zip(self.rows, groups, strict=True) if own == group]
            batches, (model, dataset, hardware, scaling) = {format_batch(row) for row in members} - {""}, group
            batch = f", batch {batches.pop()}" if len(batches) == 1 else ""
            text = f"{model} on {dataset}, hardware {hardware}, {scaling} scaling{batch}"
            headings[group] = [*wrap_text(text, width, style="bold")]
        before = None
        if len(headings) == 1:
            before = groups[0]
            yield from headings[before]
        yield from map(make_line, head)
        for row, group, ((left, status), *more) in zip(self.rows, groups, lines, strict=True):
            if group != before:
                yield from headings[group]
            before = group
            style = "bold" if row["run_id"] in winners else "dim" if row["status"] == "unsupported" else ""
            line = make_line(left, style)
            line.append(status, get_status_style(row["status"]))
            yield line
            yield from (make_line(text, style) for text, _ in more)
        yield Text()

    def _describe_speedups(self) -> str:
        """Say what speedup and efficiency are over; empty if there are none."""
        if not any(row[f"speedup_{kind}"] is not None for row, kind in zip(self.rows, self._kinds, strict=True)):
            return ""
        if self._baseline_name is not None:
            return f"speedup and efficiency over {self._baseline_name}"
        bare_ids = {row["baseline_bare_id"] for row in self.rows}
        names = sorted({row["strategy"] for row in self.rows if row["run_id"] in bare_ids})
        return f"speedup and efficiency over {' or '.join(names) or 'the same strategy'} on one device"


def lay_out(columns: Columns, numeric: Collection[str], gap: int) -> Lines:
    """Return the lines of the head, of which the last is a rule as wide as the table, and those of each row, as the
    text before the last column and in it. Columns named in `numeric` are aligned to the right.

    Cells may have line breaks; heads are broken at spaces where their cells are narrower. The last column has the width
    of its cells beside figures: a longer one begins further left, where its row is empty.
    """
    cells = [_align_limits(cells) if name in numeric else cells for name, cells in columns.items()]
    beside_figures = [last for figure, last in zip(*cells[-2:], strict=True) if figure.strip()] or cells[-1]
    heads, sizes = [], []
    for name, column in zip(columns, [*cells[:-1], beside_figures], strict=True):
        size = max(map(cell_len, (*name.split(), *(line for cell in column for line in cell.split("\n")))))
        while len(textwrap.wrap(name, size)) > MAX_HEAD_LINES:
            size += 1
        heads.append(textwrap.wrap(name, size))
        sizes.append(size)
    width, height = sum(sizes) + gap * (len(sizes) - 1), max(map(len, heads))
    lines: list[list[tuple[str, str]]] = []
    for row in ([[""] * (height - len(head)) + head for head in heads],
                *([cell.split("\n") for cell in row] for row in zip(*cells, strict=True))):  # fmt: skip
        lines.append([])
        for *texts, last in itertools.zip_longest(*row, fillvalue=""):
            left = ""
            for name, size, text in zip(columns, sizes, texts, strict=False):
                indent = " " * (size - cell_len(text)) if name in numeric else ""
                left += set_cell_size(indent + text, size + gap)
            room = min(max(cell_len(left.rstrip()) + gap, width - cell_len(last)), cell_len(left))
            lines[-1].append((set_cell_size(left, room) if last else left.rstrip(), last))
    return [*(left + last for left, last in lines[0]), "─" * width], lines[1:]


def make_rich_table(table: doc.Table, title: str = "", caption: str = "") -> RichTable:
    """Make a table for rich; its own caption is for the page, which has more room.

    No word and no figure is cut or broken: a table that does not fit is wider than the window."""
    rich_table = RichTable(
        title=make_text(title) if title else None, title_justify="left",
        caption=make_text(caption) if caption else None, caption_justify="left", box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )  # fmt: skip
    for number, name in enumerate(table.columns):
        is_numeric, texts = name in table.numeric, [row.cells[number].text for row in table.rows]
        pieces = [*name.split(), *(texts if is_numeric else (word for text in texts for word in text.split()))]
        padding = int(number == 0)  # left of the first column, which rich leaves out where it collapses padding
        min_width = max(map(len, pieces), default=0) + padding
        rich_table.add_column(make_text(name), justify="right" if is_numeric else "left", min_width=min_width)
    for row in table.rows:
        rich_table.add_row(*(make_text(cell.text) for cell in row.cells))
    return rich_table


def make_text(text: str) -> Text:
    """Return a text that shows as it is: of a str rich would read brackets as markup, and pass on escape sequences."""
    return Text(clean_text(text))


def wrap_text(text: str, width: int, indent: int = 0, style: str = "") -> Iterable[Text]:
    """Return lines that are broken between words; those after the first have an indent."""
    lines = textwrap.wrap(clean_line(text), max(width, MIN_WIDTH), subsequent_indent=" " * indent,
                          break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return (make_line(line, style) for line in lines)


def make_line(text: str, style: str = "") -> Text:
    """Return a line that shows as it is and is never broken: of a str rich would read brackets as markup."""
    return Text(text, style, no_wrap=True, overflow="ignore")


def get_status_style(status: str) -> str:
    return STATUS_STYLES.get(status, "red")


def _list_settings(row: Cells, varying: Sequence[str]) -> list[str]:
    """Return the settings that tell a row from others, such as `seed=1`."""
    settings: list[str] = []
    for name in varying:
        if name in KEY_VALUE_COLUMNS:
            settings += tables.split_settings(row[name])
        elif row[name] is not None:
            settings.append(f"{name}={tables.format_setting(row[name]).replace(' ', ',')}")
    return settings


def _format_speedup(row: Cells, name: str) -> str:
    """Return `1.86 ± 0.05`: the distance of the farther limit."""
    value, low, high = doc.get_figure(row, name)
    if value is None or low is None or high is None:
        return tables.format_ratio(value)
    return f"{value:.2f} ± {max(value - low, high - value):.2f}"


def _align_limits(cells: Sequence[str]) -> list[str]:
    """Pad figures without limits, so that they stand below those of `1.31 ± 0.17`."""
    pairs = [[*LIMIT_START.split(cell, maxsplit=1), ""][:2] for cell in cells]
    size = max(len(limits) for _, limits in pairs)
    if not size:
        return [*cells]
    padded = [limits.ljust(size) if limits.startswith("[") else limits.rjust(size) for _, limits in pairs]
    return [f"{figure} {limits}" if figure else "" for (figure, _), limits in zip(pairs, padded, strict=True)]
