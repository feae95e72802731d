"""The part of a report with configurations side by side: bars by strategy and by model, and pairs of GPUs as a table.

Rows that stand side by side differ in what is compared, and in nothing else that a column shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scalebench.analysis.identity import CURVE_COLUMNS, curve_key, name_curves
from scalebench.analysis.scaling_curves import MODEL_COLUMNS
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.units import format_count
from scalebench.report import document as doc
from scalebench.report.flag_text import describe_curve_intervals, to_number
from scalebench.report.report_data import ReportData
from scalebench.report.tables import format_throughput, make_ratio_cell

MAX_COUNTS = 3  # numbers of devices in a chart by strategy: the largest ones
MAX_SERIES = 8  # strategies in a chart by model
OF_MODEL = ("model", "dataset", "batch", *MODEL_COLUMNS.values())  # what groups of unlike models cannot share
SPEEDUP, EFFICIENCY = "speedup_bare", "efficiency_bare"
FIGURES = {
    doc.THROUGHPUT: ("Throughput", doc.Axis("samples/s"), "samples/s over all devices in steady state"),
    SPEEDUP: ("Speedup", doc.Axis("speedup"), "speedup over one device without a wrapper"),
    EFFICIENCY: (
        "Efficiency",
        doc.Axis("efficiency", percent=True),
        "speedup over one device without a wrapper, divided by the devices",
    ),
}


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no two configurations can stand side by side."""
    groups, _ = doc.group_curves(report_data.curves)
    blocks: list[doc.Block] = list(_make_model_charts(groups))
    for group in groups:
        made: list[doc.Block] = [*_make_strategy_chart(group), *_make_pair_table(group, report_data)]
        blocks += [*group.paragraphs, *made] if made else []
    return doc.Section("side-by-side", "Side by side", blocks) if blocks else None


def _make_strategy_chart(group: doc.CurveGroup) -> Iterator[doc.Chart]:
    """Draw each strategy as a bar for each of the largest numbers of devices that several strategies ran on."""
    by_count: dict[int, list[tuple[str, doc.CurveRow]]] = {}
    for curve in group.curves:
        for row in curve.rows:
            by_count.setdefault(row["gpus"], []).append((curve.name, (curve, row)))
    counts = sorted(count for count, places in by_count.items() if len(places) > 1)
    counts = [count for count in counts if count > 1][-MAX_COUNTS:] or counts
    if not counts:
        return
    column = _choose_column([row for count in counts for _, (_, row) in by_count[count]], SPEEDUP)
    series = [_make_bars(format_count(count, "device"), by_count[count], column) for count in counts]
    on = f" on {series[0].name}" if len(series) == 1 else ""
    name, axis, about = FIGURES[column]
    caption = doc.join_sentences(f"{about}, more is better", describe_curve_intervals(group.curves))
    axes, title = (doc.Axis("strategy"), axis), f"{name} by strategy{on}"
    yield group.make_chart("side-by-side", "strategy", title, axes, series, caption, "bars")


def _make_model_charts(groups: Sequence[doc.CurveGroup]) -> Iterator[doc.Chart]:
    """Draw the models that ran on one machine, for each strategy a bar, on the most devices that several ran on."""
    by_machine: dict[tuple[str, ...], list[doc.CurveGroup]] = {}
    for group in groups:
        key = tuple(text for name, text in group.shared.items() if name not in OF_MODEL)
        by_machine.setdefault(key, []).append(group)
    for members in by_machine.values():
        models = [group.shared["model"] for group in members]
        if len(set(models)) == len(models) > 1:  # of several rows of one model none stands for it
            yield from _make_model_chart(members)


def _make_model_chart(groups: Sequence[doc.CurveGroup]) -> Iterator[doc.Chart]:
    by_count: dict[int, dict[str, list[tuple[str, doc.CurveRow]]]] = {}
    for group in groups:
        for curve in group.curves:
            for row in curve.rows:
                by_name = by_count.setdefault(row["gpus"], {})
                by_name.setdefault(curve.name, []).append((group.shared["model"], (curve, row)))
    several = [count for count, names in by_count.items() if any(len(places) > 1 for places in names.values())]
    if not several:
        return
    count = max(several)
    bars = {name: places for name, places in by_count[count].items() if len(places) > 1}
    drawn = list(bars.items())[:MAX_SERIES]
    shown = [item for _, places in drawn for _, item in places]
    column = _choose_column([row for _, row in shown], EFFICIENCY) if count > 1 else doc.THROUGHPUT
    series = [_make_bars(name, places, column) for name, places in drawn]
    figure, axis, about = FIGURES[column]
    title = f"{figure} by model on {format_count(count, 'device')}"
    left_out = f"the first {MAX_SERIES} of {len(bars)} strategies" if len(bars) > MAX_SERIES else ""
    intervals = describe_curve_intervals([curve for curve, _ in shown])
    caption = doc.join_sentences(f"{about}, more is better", left_out, intervals)
    yield doc.Chart(groups[0].make_id("side-by-side", "model"), title, doc.Axis("model"), axis, series, "bars", caption)


def _choose_column(rows: Sequence[doc.Cells], column: str) -> str:
    """Return a figure against the bare baseline if all rows have it, else throughput."""
    return column if all(row[column] is not None for row in rows) else doc.THROUGHPUT


def _make_bars(name: str, places: Sequence[tuple[str, doc.CurveRow]], column: str) -> doc.Series:
    """Make a series of bars from the name and the row of each, with the limits and repeats of its figure."""
    stem = "throughput" if column == doc.THROUGHPUT else column
    rows = [row for _, (_, row) in places]
    low, high = ([to_number(row[f"{stem}_{end}"]) for row in rows] for end in ("low", "high"))
    repeats = [
        [y for each in row.get(doc.REPEAT_ROWS) or () if (y := to_number(each[column])) is not None] for row in rows
    ]
    tags = [curve.tags for _, (curve, _) in places]
    names, values = [place for place, _ in places], [to_number(row[column]) for row in rows]
    return doc.Series(name, names, values, low, high, point_tags=tags, repeats=repeats)


def _make_pair_table(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Table]:
    """Compare rows that differ in nothing but their devices: throughput on each choice, and its ratio to the first."""
    position = CURVE_COLUMNS.index("device_ids")
    by_row: dict[tuple[int, tuple[Any, ...]], dict[str, doc.CurveRow]] = {}
    for (curve, row), _ in group.list_rows():
        if row["device_ids"]:
            key = curve_key(row)
            rest = (*key[:position], None, *key[position + 1 :])
            by_row.setdefault((row["gpus"], rest), {}).setdefault(row["device_ids"], (curve, row))
    by_row = {key: rows for key, rows in by_row.items() if len(rows) > 1}
    if not by_row:
        return
    names = name_curves([rest for _, rest in by_row])
    first_rows = {ids: row for rows in reversed(by_row.values()) for ids, (_, row) in rows.items()}
    base, *others = chosen = list(dict.fromkeys(ids for rows in by_row.values() for ids in rows))
    heads = {ids: _describe_devices(ids, str(first_rows[ids]["run_id"]), report_data) for ids in chosen}
    columns = ["strategy", doc.DEVICES, *(f"{heads[ids]}, samples/s" for ids in chosen)]
    columns += [f"{heads[ids]} / {heads[base]}" for ids in others]
    made = []
    for (gpus, rest), rows in by_row.items():
        cells = [doc.make_cell(names[rest]), doc.make_cell(str(gpus), gpus)]
        cells += [_rate_cell(rows.get(ids)) for ids in chosen]
        cells += [_ratio_cell(rows.get(ids), rows.get(base), report_data) for ids in others]
        made.append(doc.Row(cells, next(iter(rows.values()))[0].tags))
    about = "each choice of devices (hardware.device_ids) with its connections"
    caption = doc.join_sentences(about, "ratios: throughput over that of the first choice, with 95 % intervals")
    numeric = frozenset(columns[1:])
    yield doc.Table(group.make_id("side-by-side", "pairs"), "Choices of devices", columns, made, numeric, caption)


def _rate_cell(item: doc.CurveRow | None) -> doc.Cell:
    return doc.Cell("") if item is None else doc.make_cell(format_throughput(item[1]), item[1][doc.THROUGHPUT])


def _ratio_cell(item: doc.CurveRow | None, base: doc.CurveRow | None, report_data: ReportData) -> doc.Cell:
    if item is None or base is None:
        return doc.Cell("")
    return make_ratio_cell(decide_ratio(item[1], base[1], report_data.configurations.estimate_ratio))


def _describe_devices(ids: str, run_id: str, report_data: ReportData) -> str:
    """Return `0,1 (PIX)`, with the kinds of connection between these devices if the record of the run has them."""
    numbers = [int(number) for number in ids.split() if number.isdecimal()]
    links = report_data.result(run_id).machine.list_links(numbers) if run_id in report_data.detailed_run_ids else []
    return ",".join(map(str, numbers)) + (f" ({', '.join(links)})" if links else "")
