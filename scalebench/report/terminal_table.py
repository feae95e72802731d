"""Tables in a terminal, drawn by rich, and the table of runs: seven columns that fit 80 characters, with remarks as
footnotes; on request the table of the page, which has all figures.

No name, setting or figure is cut, and no figure is broken: a table that does not fit has a single space between
columns, then breaks texts between words, then loses the limits of speedups, and is at last wider than the window.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis.columns import estimate_of
from scalebench.analysis.identity import KEY_VALUE_COLUMNS
from scalebench.analysis.scaling_curves import format_batch, plain_rows
from scalebench.core.untrusted import clean_line, clean_text
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_intervals

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("model", "dataset", "hardware", "scaling")  # Rows that agree in these share a table.
BASELINES = ("bare", "self")  # What speedups are over, in the order of preference.
CHIP_STYLES = {"good": "green", "bad": "red", "off": "dim", "": ""}
COLUMNS = ("#", "strategy", "devices", "samples/s", "speedup", "efficiency", "status")
NUMERIC_COLUMNS = frozenset([*COLUMNS, tables.TOKENS_HEAD]) - {"strategy", "status"}
MEASURING = Console(width=10_000)  # It is wide enough to measure anything.
LIMITS = re.compile(r" [±\[].*")  # They follow a figure.
Cells = dict[str, Any]
Part = RichTable | Text | str  # A table, a text that may be broken between words, and a line that may not.


class UncutTable(RichTable):
    """A table of rich's that is wider than its window, rather than without a column."""

    least_width = 0  # Characters, with each text broken at every space.
    extra_width = 0  # Characters that it takes beyond that to break no text.

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options.update(width=max(options.max_width, self.least_width)))


def render(blocks: Iterable[doc.Table | str]) -> Iterator[Part]:
    """Yield each table below its title, and each sentence as a text that may be broken."""
    for block in blocks:
        if isinstance(block, str):
            yield make_text(block)
        else:
            yield from [make_text(block.title)] if block.title else []
            yield make_rich_table(block)


def make_rich_table(table: doc.Table, styles: Sequence[str] = (), wraps: bool = True, **layout: Any) -> UncutTable:
    """Make a table for rich, without title and caption. `styles` are those of its rows, `layout` settings of rich's.

    No word and no figure is cut or broken, and without `wraps` no text: a table that does not fit is wider than the
    window."""
    rich_table = UncutTable(box=box.SIMPLE_HEAD, **{"padding": (0, 1, 0, 0), **layout})
    columns: list[list[RenderableType]] = []
    for number, name in enumerate(table.columns):
        is_numeric, cells = name in table.numeric, [row.cells[number] for row in table.rows]
        texts = [Text(clean_text(cell.text), CHIP_STYLES[cell.chip]) for cell in cells]
        # Figures without limits stand below those of `1.31 ± 0.17`.
        limits = [len(match[0]) if is_numeric and (match := LIMITS.search(text.plain)) else 0 for text in texts]
        longest = max(limits, default=0)
        columns.append([
            Padding(text, (0, space, 0, 0)) if (space := longest - size) else text
            for text, size in zip(texts, limits, strict=True)
        ])  # fmt: skip
        head, sizes = MEASURING.measure(make_text(name)), list(map(MEASURING.measure, columns[-1]))
        least = max([head.minimum, *(size.minimum if wraps and not is_numeric else size.maximum for size in sizes)])
        most = max([head.maximum, *(size.maximum for size in sizes)])
        rich_table.extra_width += most - least
        # rich takes space from columns that may be broken, however narrow they are.
        justify: Literal["left", "right"] = "right" if is_numeric else "left"
        rich_table.add_column(make_text(name), justify=justify, min_width=least, no_wrap=least == most)
    rich_table.least_width = MEASURING.measure(rich_table).minimum
    for row, style in zip(zip(*columns, strict=True), [*styles, *[""] * (len(table.rows) - len(styles))], strict=True):
        rich_table.add_row(*row, style=style)
    return rich_table


def make_text(text: str) -> Text:
    """Return a text that shows as it is: of a str rich would read brackets as markup, and pass on escape sequences."""
    return Text(clean_text(text))


class RunTable:
    """The rows of a pooled frame in the order in which they are shown: each with its `number`, its `settings`, and
    `speedup` and `efficiency` over the `baseline_kind` that it has."""

    def __init__(self, frame: pd.DataFrame, baseline_name: str | None = None) -> None:
        """`baseline_name` is the label of the baseline that the user named; speedups are then over that run."""
        self.rows = tables.drop_common_settings(plain_rows(frame.sort_values(tables.SORT_COLUMNS)))
        self._frame, self._baseline_name = frame, baseline_name
        varying = [name for name in tables.split_shared_columns(frame)[1] if name not in GROUP_COLUMNS]
        kinds = BASELINES if baseline_name is None else ("given",)
        for number, row in enumerate(self.rows, 1):
            kind = next((kind for kind in kinds if row[f"speedup_{kind}"] is not None), kinds[0])
            row |= {"number": number, "settings": " ".join(_list_settings(row, varying)), "baseline_kind": kind}
            row |= {name: row[f"{name}_{kind}"] for name in ("speedup", "efficiency")}
            row |= {f"speedup_{end}": row[f"speedup_{kind}_{end}"] for end in ("low", "high")}
        self._has_mixed_intervals = frame["interval_over"].nunique() > 1
        self._has_bare = any(row["baseline_kind"] == "bare" for row in self.rows)

    def list_parts(self, width: int, winners: Collection[str] = (), wide: bool = False) -> Iterator[Part]:
        """Yield a table for each group of rows, at most `width` characters wide if possible, and the footnotes; rows
        with a run_id among `winners` are bold. `wide` asks for the page's table of all figures, however wide it is."""
        notes = tables.Footnotes()
        if wide:
            table = tables.make_configuration_table(self._frame, self._baseline_name and "baseline")
            rows = [replace(row, cells=[doc.Cell(str(number)), *row.cells]) for number, row in enumerate(table.rows, 1)]
            table = replace(table, columns=["#", *table.columns], rows=rows, numeric=table.numeric | {"#"})
            yield make_rich_table(table, wraps=False, show_edge=False, pad_edge=False)
            named = f"baseline: {self._baseline_name}" if self._baseline_name else ""
            captions, footnotes = [table.caption, named], table.footnotes
        else:
            for _, group in itertools.groupby(self.rows, lambda row: [row[name] for name in GROUP_COLUMNS]):
                yield from self._make_group_parts([*group], notes, width, winners)
            captions, footnotes = [self._describe_speedups(), describe_intervals(self.rows)], notes.list_notes()
        yield ""
        if footnotes:
            rows = [doc.Row([doc.Cell(mark), doc.Cell(text)]) for mark, text in footnotes]
            notes_table = doc.Table("notes", "", ("", ""), rows)
            yield make_rich_table(notes_table, show_header=False, show_edge=False, pad_edge=False, padding=0)
        for caption in filter(None, captions):
            yield from Text(clean_line(caption)).wrap(MEASURING, width)

    def _make_group_parts(
        self, rows: Sequence[Cells], notes: tables.Footnotes, width: int, winners: Collection[str]
    ) -> Iterator[Part]:
        """Yield the heading and the table of the rows of one workload."""
        # The heading reads `materials_cnn on materials, hardware cpu, weak scaling, batch 75 per device`.
        heading = "{model} on {dataset}, hardware {hardware}, {scaling} scaling".format_map(rows[0])
        batches = {format_batch(row) for row in rows} - {""}
        if rows[0]["number"] > 1:
            yield ""
        heading += f", batch {batches.pop()}" if len(batches) == 1 else ""
        yield from Text(clean_line(heading), "bold").wrap(MEASURING, width)

        lines, styles = [], []
        for row in rows:
            speedup, share = estimate_of(row, "speedup"), row["efficiency"]
            ratio = "" if speedup is None else f"{speedup.value:.2f}"
            if speedup is not None and speedup.has_limits:  # Shown is the distance of the farther one.
                ratio += f" ± {max(speedup.value - speedup.low, speedup.high - speedup.value):.2f}"
            status = " ".join([row["status"], *notes.mark(self._list_remarks(row))])
            texts = [row["number"], clean_line(f"{row['strategy']} {row['settings']}"), row["gpus"]]
            texts += [tables.format_throughput(row, notes_repeat=False), ratio]
            texts += ["" if share is None else tables.format_whole_percent(share)]
            status_cell = doc.Cell(status, chip=tables.STATUS_CHIPS.get(row["status"], "bad"))
            lines.append([*(doc.Cell(str(text)) for text in texts), status_cell])
            styles.append("bold" if row["run_id"] in winners else "dim" if row["status"] == "unsupported" else "")
        columns: tuple[str, ...] = COLUMNS
        if any(row["tokens_per_s"] is not None for row in rows):
            place = COLUMNS.index("samples/s") + 1
            columns = (*COLUMNS[:place], tables.TOKENS_HEAD, *COLUMNS[place:])
            for row, line in zip(rows, lines, strict=True):
                line.insert(place, doc.Cell(tables.make_cell(row, "tokens_per_s").text))
        place = columns.index("speedup")
        for has_limits, space, may_break in ((True, 1, False), (True, 0, False), (True, 0, True), (False, 0, True)):
            if not has_limits:
                for line in lines:
                    line[place] = doc.Cell(line[place].text.partition(" ")[0])
            table = doc.Table("runs", "", columns, list(map(doc.Row, lines)), NUMERIC_COLUMNS)
            layout: dict[str, Any] = {"padding": (0, space, 0, 0), "show_edge": False, "pad_edge": False}
            rich_table = make_rich_table(table, styles=styles, **layout)
            if rich_table.least_width + (0 if may_break else rich_table.extra_width) <= width:
                break
        yield rich_table

    def _list_remarks(self, row: Cells) -> list[str]:
        remarks = tables.list_remarks(row, explains=True)
        if row["status"] != "ok":
            return remarks
        if (row["nodes"] or 1) > 1:
            remarks.append(f"on {row['nodes']} nodes")
        if row["interval_over"] == "blocks" and self._has_mixed_intervals:
            remarks.append("its interval is over blocks of one repeat")
        if row["gpus"] > 1 and row["baseline_kind"] == "self" and row["speedup"] is not None and self._has_bare:
            remarks.append("speedup over the same strategy on one device")
        return remarks

    def _describe_speedups(self) -> str:
        """Say what speedup and efficiency are over; empty if there are none."""
        if not any(row["speedup"] is not None for row in self.rows):
            return ""
        if self._baseline_name is not None:
            return f"speedup and efficiency over {self._baseline_name}"
        bare_ids = {row["baseline_bare_id"] for row in self.rows}
        names = sorted({row["strategy"] for row in self.rows if row["run_id"] in bare_ids})
        return f"speedup and efficiency over {' or '.join(names) or 'the same strategy'} on one device"


def _list_settings(row: Cells, varying: Sequence[str]) -> list[str]:
    """Return the settings that tell a row from others, such as `seed=1`."""
    settings: list[str] = []
    for name in varying:
        if name in KEY_VALUE_COLUMNS:
            settings += tables.split_settings(row[name])
        elif row[name] is not None:
            settings.append(f"{name}={tables.format_setting(row[name]).replace(' ', ',')}")
    return settings
