"""The table of runs in a terminal: six columns that fit 80 characters, with remarks as footnotes; all figures on
request.

Names, settings and intervals are never cut or broken: a table that does not fit gets narrower gaps, then loses the
limits of speedups and the gaps between footnote letters, and is at last wider than the window.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis.identity import KEY_VALUE_COLUMNS
from scalebench.analysis.scaling_curves import format_batch, plain_rows
from scalebench.core.untrusted import clean_line, clean_text
from scalebench.report import document as doc
from scalebench.report import tables, training_tables
from scalebench.report.flag_text import describe_intervals

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("model", "dataset", "hardware", "scaling")  # of rows below one heading
BASELINES = ("bare", "self")  # of speedups, in the order of preference
STATUS_STYLES = {"ok": "green", "unsupported": "dim", "cancelled": "yellow"}  # of the others: red
LAYOUTS = ((False, 2), (True, 2), (True, 1))  # each setting on its own line, and characters between columns
WIDE_TRAINING_COLUMNS = ("gap", "samples/s over", "to target over self")  # beginnings of the columns that --wide adds
WIDE_HEADS = {"gpus": "devices", "samples/s (95 %)": "samples/s"}  # by the heads of the page
MAX_HEAD_LINES = 2
LIMIT_START = re.compile(r" (?=[±\[])")
MIN_WIDTH = 20  # of texts that are broken between words
Cells = dict[str, Any]
Columns = Mapping[str, Sequence[str]]  # cells by head


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
        numbers, notes = range(len(self.rows)), tables.Footnotes()
        marks = [notes.mark(self._list_remarks(number, wide)) for number in numbers]
        statuses = [" ".join([row["status"], *own]) for row, own in zip(self.rows, marks, strict=True)]
        rates = [tables.format_throughput(row, notes_repeat=False) for row in self.rows]
        if wide:
            makers = tables.make_figure_columns(self._frame, self._varying, self._baseline_name and "baseline")
            columns = {clean_line(name): [make(row).text for row in self.rows] for name, make in makers.items()}
            columns[tables.THROUGHPUT_HEAD] = rates
            figures = {WIDE_HEADS.get(name, name): cells for name, cells in columns.items()}
            table = self._fit(numbers, figures, {"status": statuses}, sys.maxsize)
        else:
            pairs = list(zip(self.rows, self._kinds, strict=True))
            figures = {
                "devices": [str(row["gpus"]) for row in self.rows],
                "samples/s": rates,
                "speedup": [tables.format_ratio_and_limit(row, f"speedup_{kind}") for row, kind in pairs],
                "efficiency": [tables.format_percent(row[f"efficiency_{kind}"]) for row, kind in pairs],
            }
            table = self._fit(numbers, figures, {"status": statuses}, width)
            if table.width > width:
                figures["speedup"] = [ratio.partition(" ")[0] for ratio in figures["speedup"]]
                table = self._fit(numbers, figures, {"status": statuses}, width)
            if table.width > width and all(len(mark) == 1 for own in marks for mark in own):
                statuses = [f"{row['status']} {''.join(own)}".rstrip()
                            for row, own in zip(self.rows, marks, strict=True)]  # fmt: skip
                table = self._fit(numbers, figures, {"status": statuses}, width)
        yield from self._arrange(table, winners, width)
        for mark, remark in notes.list_notes():
            yield from wrap_text(f"{mark} {remark}", width, len(mark) + 1)
        for caption in (self._describe_speedups(wide), describe_intervals(self._frame)):
            yield from wrap_text(caption, width)

    def list_summary_rows(self) -> list[Cells]:
        """Return the cells of each row in the order shown, with `settings`, and speedup and efficiency as shown."""
        names = ("speedup", "efficiency")
        return [
            {**row, "settings": " ".join(_list_settings(row, self._varying)),
             **{name: row[f"{name}_{kind}"] for name in names}}
            for row, kind in zip(self.rows, self._kinds, strict=True)
        ]  # fmt: skip

    def list_training_lines(self, width: int, wide: bool = False) -> Iterator[Text]:
        """Yield the lines of the table of trainings to a stop, with the numbers of their runs; none without such."""
        numbers = [number for number, row in enumerate(self.rows) if row["stopped_by"] is not None]
        if not numbers:
            return
        makers = training_tables.select_figure_columns(self._frame[self._frame["stopped_by"].notna()])
        selection = {name: make for name, make in makers.items() if wide or not name.startswith(WIDE_TRAINING_COLUMNS)}
        figures = {"devices": [str(self.rows[number]["gpus"]) for number in numbers]}
        figures |= {
            clean_line(name): [clean_line(make(self.rows[number])) for number in numbers]
            for name, make in selection.items()
        }
        stopped_by = {"stopped by": [clean_line(self.rows[number]["stopped_by"]) for number in numbers]}
        table = self._fit(numbers, figures, stopped_by, sys.maxsize if wide else width)
        yield from (make_line(line) for line in ("", *table.head))
        yield from (make_line(left + last) for lines in table.rows for left, last in lines)

    def _fit(self, numbers: Sequence[int], figures: Columns, last: Columns, width: int) -> TextTable:
        """Return the table in the first layout that fits, else in the narrowest. It begins with number and name: the
        strategy, and the settings by which rows differ."""
        labels = [[row["strategy"], *_list_settings(row, self._varying)] for row in self.rows]
        for breaks, gap in LAYOUTS:
            separator = "\n  " if breaks else " "
            first = {
                "#": [str(number + 1) for number in numbers],
                "strategy": [separator.join(map(clean_line, labels[number])) for number in numbers],
            }
            table = TextTable({**first, **figures, **last}, {"#", *figures}, gap)
            if table.width <= width:
                break
        return table

    def _list_remarks(self, number: int, wide: bool) -> list[str]:
        row, kinds = self.rows[number], self._kinds
        remarks = tables.list_remarks(row, explains=True)
        if row["status"] != "ok":
            return remarks
        if (row["nodes"] or 1) > 1 and not wide:
            remarks.append(f"on {row['nodes']} nodes")
        if row["interval_over"] == "blocks" and self._frame["interval_over"].dropna().nunique() > 1:
            remarks.append("its interval is over blocks of one repeat")
        if row["gpus"] > 1 and row["speedup_self"] is not None and kinds[number] == "self" and "bare" in kinds:
            remarks.append("speedup over the same strategy on one device")
        return remarks

    def _arrange(self, table: TextTable, winners: Collection[str], width: int) -> Iterator[Text]:
        """Yield the head, and the rows of each group below its heading; the heading of a single group comes first."""
        groups = [tuple(row[name] for name in GROUP_COLUMNS) for row in self.rows]
        headings = {group: [*wrap_text(self._describe_group(group), width, style="bold")] for group in groups}
        yield from (headings[groups[0]] if len(headings) == 1 else [])
        yield from map(make_line, table.head)
        before = groups[0] if len(headings) == 1 else None
        for row, group, ((left, status), *more) in zip(self.rows, groups, table.rows, strict=True):
            if group != before:
                yield from headings[group]
            before = group
            style = "bold" if row["run_id"] in winners else "dim" if row["status"] == "unsupported" else ""
            line = make_line(left, style)
            line.append(status, get_status_style(row["status"]))
            yield line
            yield from (make_line(text, style) for text, _ in more)
        yield Text()

    def _describe_group(self, group: tuple[Any, ...]) -> str:
        """Return `materials_cnn on materials, hardware cpu, weak scaling, batch 75 per device`."""
        model, dataset, hardware, scaling = group
        members = [row for row in self.rows if tuple(row[name] for name in GROUP_COLUMNS) == group]
        batches = {format_batch(row) for row in members}
        batch = f", batch {batches.pop()}" if len(batches) == 1 else ""
        return f"{model} on {dataset}, hardware {hardware}, {scaling} scaling{batch}"

    def _describe_speedups(self, wide: bool) -> str:
        """Say what speedup and efficiency are over; empty if there are none, or if the heads say it."""
        if wide:
            return f"baseline: {self._baseline_name}" if self._baseline_name else ""
        if not any(row[f"speedup_{kind}"] is not None for row, kind in zip(self.rows, self._kinds, strict=True)):
            return ""
        if self._baseline_name is not None:
            return f"speedup and efficiency over {self._baseline_name}"
        bare_ids = {row["baseline_bare_id"] for row in self.rows}
        names = sorted({row["strategy"] for row in self.rows if row["run_id"] in bare_ids})
        return f"speedup and efficiency over {' or '.join(names) or 'the same strategy'} on one device"


class TextTable:
    """Columns of text as lines. Cells may have line breaks; heads are broken at spaces where their cells are narrower.

    The last column has the width of its cells beside figures: a longer one begins further left, where its row is empty.
    """

    def __init__(self, columns: Columns, numeric: Collection[str], gap: int = 2) -> None:
        """`numeric` names the columns that are aligned to the right."""
        self._gap, self._numeric = gap, [name in numeric for name in columns]
        cells = [_align_limits(cells) if name in numeric else cells for name, cells in columns.items()]
        is_beside_figures = [bool(cell.strip()) for cell in cells[-2]]
        measured = [*cells]
        if any(is_beside_figures):
            measured[-1] = [cell for cell, is_beside in zip(cells[-1], is_beside_figures, strict=True) if is_beside]
        self._sizes = [
            _find_width(name, max((len(line) for cell in column for line in cell.split("\n")), default=0))
            for name, column in zip(columns, measured, strict=True)
        ]
        self.width = sum(self._sizes) + gap * (len(cells) - 1)
        heads = [textwrap.wrap(name, size) for name, size in zip(columns, self._sizes, strict=True)]
        height = max(map(len, heads))
        lines = self._join([[""] * (height - len(head)) + head for head in heads])
        self.head = [*(left + last for left, last in lines), "─" * self.width]
        self.rows = [self._join([cell.split("\n") for cell in row]) for row in zip(*cells, strict=True)]

    def _join(self, cells: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
        """Join the cells of a row, each a list of lines. Return lines as the text before the last column, and in it."""
        lines = []
        for number in range(max(map(len, cells))):
            *texts, last = [cell[number] if number < len(cell) else "" for cell in cells]
            padded = [
                text.rjust(size) if is_numeric else text.ljust(size)
                for text, size, is_numeric in zip(texts, self._sizes, self._numeric, strict=False)
            ]
            left = (" " * self._gap).join([*padded, ""])
            room = max(len(left.rstrip()) + self._gap, self.width - len(last))
            lines.append((left[:room] if last else left.rstrip(), last))
        return lines


def _find_width(head: str, cells_width: int) -> int:
    """Return the width of a column: that of its cells, or of its head in at most MAX_HEAD_LINES lines."""
    width = max([cells_width, *map(len, head.split())])
    while len(textwrap.wrap(head, width)) > MAX_HEAD_LINES:
        width += 1
    return width


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


def _align_limits(cells: Sequence[str]) -> list[str]:
    """Pad figures without limits, so that they stand below those of `1.31 ± 0.17`."""
    pairs = [[*LIMIT_START.split(cell, maxsplit=1), ""][:2] for cell in cells]
    size = max(len(limits) for _, limits in pairs)
    if not size:
        return [*cells]
    padded = [limits.ljust(size) if limits.startswith("[") else limits.rjust(size) for _, limits in pairs]
    return [f"{figure} {limits}" if figure else "" for (figure, _), limits in zip(pairs, padded, strict=True)]
