"""The parts of a report about how configurations scale and compare: throughput and efficiency over devices, slopes and
node boundaries; bars by strategy and by model, and choices of devices; the table of all configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalebench.analysis.identity import CURVE_COLUMNS, curve_key, name_curves
from scalebench.analysis.read_runs import Unreadable
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import (
    MODEL_COLUMNS,
    find_node_boundaries,
    find_scaling_limit,
    fit_slope,
)
from scalebench.analysis.verdicts import decide_ratio, explain_no_verdict
from scalebench.core.units import format_count
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_curve_intervals, to_number
from scalebench.report.repeat_commands import make_baseline_commands
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

MIN_DIFFERENCE = 0.05  # of the speedup; below it, curves against self would coincide with those against bare
BASELINES = {
    "bare": "against one device without a wrapper, the strategy's bare baseline",
    "self": "against the same strategy on one device",
}
SLOPE_CAPTION = (
    "slope is the fitted speedup per device: ordinary least squares, with an intercept, over the numbers of devices "
    "that are listed; its 95 % limits follow from those of the speedups. Off: the largest deviation of a speedup from "
    "the line"
)
JUMP_CAPTION = (
    "ratio: throughput per device after over before another node begins, with its 95 % interval; part of it is what as "
    "many more devices would have cost on one node"
)
MIN_SLOPE_POINTS = 3
MAX_COMMANDS = 10
COMPETING_COLUMNS = ["model", "dataset", "hardware", "scaling", "gpus"]  # rows that agree in them compete

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
    """Return None if nothing was measured on several devices."""
    groups, left_out = doc.group_curves(
        report_data.curves, lambda members: max(max(curve.gpus) for curve in members) > 1
    )
    blocks: list[doc.Block] = [*left_out]
    for group in groups:
        rows = [row for curve in group.curves for row in curve.rows]
        baselines = _describe_baselines(rows, report_data.baseline_name)
        blocks += [*group.paragraphs, _make_throughput_chart(group, report_data)]
        # Charts are of the first of the usual baselines, and of the one that the user named; tables have the others.
        usual = [kind for kind in baselines if kind != "given"]
        for kind in (*usual[:1], *(kind for kind in baselines if kind == "given")):
            blocks += [_make_efficiency_chart(group, kind, baselines[kind])]
            blocks += _make_speedup_chart(group, kind, baselines[kind])
        heads = {kind: str(report_data.baseline_name) if kind == "given" else kind for kind in baselines}
        blocks += _make_slope_table(group, heads, report_data.min_efficiency)
        kind = next(iter(baselines), "bare")
        about, estimate_ratio = baselines.get(kind, BASELINES[kind]), report_data.configurations.estimate_ratio
        blocks += _make_jump_table(group, estimate_ratio, kind, about)
    return doc.Section("scaling", "Scaling", blocks, folded=len(groups) == 1) if groups else None


def _describe_baselines(rows: Sequence[doc.Cells], baseline_name: str | None) -> dict[str, str]:
    """Describe the baselines to compare with: self only if it differs from bare, the named one if there is one."""

    def differs(row: doc.Cells) -> bool:
        over_bare, over_self = row["speedup_bare"], row["speedup_self"]
        return over_self is not None and (over_bare is None or abs(over_self / over_bare - 1) > MIN_DIFFERENCE)

    kinds = [kind for kind in BASELINES if any(row[f"speedup_{kind}"] is not None for row in rows)]
    if kinds == ["bare", "self"] and not any(map(differs, rows)):
        kinds = ["bare"]
    baselines = {kind: BASELINES[kind] for kind in kinds}
    if baseline_name is not None and any(row.get("speedup_given") is not None for row in rows):
        baselines["given"] = f"against {baseline_name}, the named baseline"
    return baselines


def _make_throughput_chart(group: doc.CurveGroup, report_data: ReportData) -> doc.Chart:
    lines = doc.make_line_series(group.curves, doc.THROUGHPUT, "throughput")
    rates = _find_bare_rates(group, report_data)
    ideals = [_make_ideal(group, lines, f"ideal of {name}", rate) for name, rate in rates.items()]
    about = "samples/s over all devices in steady state, more is better"
    ideal = "ideal is what the bare baseline, of several the fastest, would give without any loss" if ideals else ""
    caption = doc.join_sentences(about, ideal, describe_curve_intervals(group.curves))
    axes = doc.make_devices_axis(lines), doc.Axis("samples/s")
    return group.make_chart("scaling", "throughput", "Throughput", axes, [*lines, *ideals], caption)


def _find_bare_rates(group: doc.CurveGroup, report_data: ReportData) -> dict[str, float]:
    """Return the samples/s of each bare strategy that these curves are compared with, such as PyTorch's."""
    run_ids = {row["baseline_bare_id"] for curve in group.curves for row in curve.rows} - {None}
    frame, fastest = report_data.pooled, dict[str, float]()
    bare = frame.loc[frame["run_id"].isin(run_ids) & frame[doc.THROUGHPUT].notna(), ["strategy", doc.THROUGHPUT]]
    for name, rate in zip(bare["strategy"], bare[doc.THROUGHPUT], strict=True):
        fastest[name] = max(fastest.get(name, 0.0), float(rate))
    return fastest


def _make_efficiency_chart(group: doc.CurveGroup, kind: str, about: str) -> doc.Chart:
    lines = doc.make_line_series(group.curves, f"efficiency_{kind}")
    ideal = _make_ideal(group, lines, "ideal", 1.0, level=True)
    caption = doc.join_sentences(
        f"speedup divided by the number of devices, {about}; more is better", describe_curve_intervals(group.curves)
    )
    axes = doc.make_devices_axis(lines), doc.Axis("efficiency", percent=True)
    title = f"Efficiency {about.partition(', ')[0]}"
    return group.make_chart("scaling", f"efficiency {kind}", title, axes, [*lines, ideal], caption)


def _make_speedup_chart(group: doc.CurveGroup, kind: str, about: str) -> Iterator[doc.Chart]:
    """Draw speedups with the lines whose slopes are in the table. Without a slope, efficiencies say as much."""
    lines = []
    for curve in group.curves:
        name = f"speedup_{kind}"
        line = doc.make_series(curve.name, curve.tags, curve.rows, "gpus", name, name)
        fitted = fit_slope(curve, kind) if len(curve.rows) >= MIN_SLOPE_POINTS else None
        fit = [fitted.intercept + fitted.speedup.value * row["gpus"] for row in curve.rows] if fitted else []
        if line is not None:  # a line through the points would hide the fitted one
            lines.append(replace(line, fit=fit, style="points") if fit else line)
    if not any(line.fit for line in lines):
        return
    dotted = "dotted: fitted lines, whose slopes are in the table"
    caption = doc.join_sentences(f"speedup {about}, more is better", dotted, describe_curve_intervals(group.curves))
    axes, lines = (doc.make_devices_axis(lines), doc.Axis("speedup")), [*lines, _make_ideal(group, lines, "ideal", 1.0)]
    title = f"Speedup {about.partition(', ')[0]}"
    yield group.make_chart("scaling", f"speedup {kind}", title, axes, lines, caption)


def _make_ideal(
    group: doc.CurveGroup, lines: list[doc.Series], name: str, value: float, level: bool = False
) -> doc.Series:
    """Make a line of `value` per device, or a horizontal line at `value`."""
    gpus = list(doc.make_devices_axis(lines).ticks or [])
    return doc.Series(name, gpus, [value * (1 if level else x) for x in gpus], tags=group.tags, style="ideal")


def _make_slope_table(
    group: doc.CurveGroup, baselines: Mapping[str, str], min_efficiency: float
) -> Iterator[doc.Table]:
    """Make a row for each curve of MIN_SLOPE_POINTS or more: a line through two says no more than these two.

    `baselines` maps what speedups are against (bare, self, given) to a label.
    """
    curves = [curve for curve in group.curves if len(curve.rows) >= MIN_SLOPE_POINTS]
    if not curves or not baselines:
        return
    keeps_head = f"keeps {100 * min_efficiency:g} %"
    names = ("slope", "off", "over devices", keeps_head)
    columns = [f"{name}, {label}" for label in baselines.values() for name in names]
    rows = []
    for curve in curves:
        cells = [doc.make_cell(curve.name)]
        for kind in baselines:
            fitted, limit = fit_slope(curve, kind), find_scaling_limit(curve, min_efficiency, kind)
            if fitted is None:
                cells += [doc.Cell("")] * 3
            else:
                cells.append(tables.make_ratio_cell(fitted.speedup))
                cells.append(doc.make_cell(tables.format_percent(fitted.worst), fitted.worst))
                cells.append(doc.make_cell(", ".join(str(count) for count, _ in fitted.points)))
            # `4 [2]`; `none` if not even the fewest devices keep the efficiency, empty if no efficiency is known.
            again = f"; again {', '.join(map(str, limit.regained_gpus))}" if limit.regained_gpus else ""
            text = f"{limit.gpus or 'none'} [{limit.certain_gpus or 'none'}]{again}"
            cells.append(doc.Cell("") if limit.largest_measured is None else doc.make_cell(text, limit.gpus or 0))
        rows.append(doc.Row(cells, curve.tags))
    about = (
        f"{keeps_head}: the most devices up to which efficiency is no less, by the figures and, in brackets, by the "
        "lower limits of their intervals"
    )
    numeric = frozenset(name for name in columns if not name.startswith("over"))
    title, caption = "Slopes", doc.join_sentences(SLOPE_CAPTION, about)
    yield doc.Table(group.make_id("scaling", "slopes"), title, ["strategy", *columns], rows, numeric, caption)


def _make_jump_table(
    group: doc.CurveGroup, estimate_ratio: EstimateRatio, kind: str, about: str
) -> Iterator[doc.Table]:
    """Make a row for each node boundary of a curve; `about` describes the baseline `kind`."""
    rows = []
    for curve in group.curves:
        for jump in find_node_boundaries(curve, estimate_ratio, kind):
            remark = "no difference resolved" if jump.ratio.low <= 1 <= jump.ratio.high else ""
            if not jump.ratio.has_limits:
                remark = explain_no_verdict(*jump.rows) or "no interval"
            cells = [doc.make_cell(curve.name)]
            cells += [doc.make_cell(" to ".join(str(row[name]) for row in jump.rows)) for name in ("gpus", "nodes")]
            cells += [doc.make_cell(tables.format_percent(share), share) for share in jump.efficiencies]
            cells += [tables.make_ratio_cell(jump.ratio), doc.make_cell(remark)]
            rows.append(doc.Row(cells, curve.tags))
    if rows:
        numeric = ("efficiency before", "after", "ratio")
        heads, caption = ["strategy", doc.DEVICES, "nodes", *numeric, "remarks"], f"efficiency {about}"
        caption, table_id = doc.join_sentences(caption, JUMP_CAPTION), group.make_id("scaling", "nodes")
        yield doc.Table(table_id, "Node boundaries", heads, rows, frozenset(numeric), caption)


def side_by_side_section(report_data: ReportData) -> doc.Section | None:
    """Return None if no two configurations can stand side by side."""
    groups, _ = doc.group_curves(report_data.curves)
    blocks: list[doc.Block] = list(_make_model_charts(groups))
    for group in groups:
        new_blocks: list[doc.Block] = [*_make_strategy_chart(group), *_make_pair_table(group, report_data)]
        blocks += [*group.paragraphs, *new_blocks] if new_blocks else []
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
    first_bars = list(bars.items())[:MAX_SERIES]
    items = [item for _, places in first_bars for _, item in places]
    column = _choose_column([row for _, row in items], EFFICIENCY) if count > 1 else doc.THROUGHPUT
    series = [_make_bars(name, places, column) for name, places in first_bars]
    figure, axis, about = FIGURES[column]
    title = f"{figure} by model on {format_count(count, 'device')}"
    left_out = f"the first {MAX_SERIES} of {len(bars)} strategies" if len(bars) > MAX_SERIES else ""
    intervals = describe_curve_intervals([curve for curve, _ in items])
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
    base, *others = choices = list(dict.fromkeys(ids for rows in by_row.values() for ids in rows))
    heads = {ids: _describe_devices(ids, str(first_rows[ids]["run_id"]), report_data) for ids in choices}
    columns = ["strategy", doc.DEVICES, *(f"{heads[ids]}, samples/s" for ids in choices)]
    columns += [f"{heads[ids]} / {heads[base]}" for ids in others]
    table_rows = []
    for (gpus, rest), rows in by_row.items():
        cells = [doc.make_cell(names[rest]), doc.make_cell(str(gpus), gpus)]
        cells += [tables.make_throughput_cell(rows[ids][1]) if ids in rows else doc.Cell("") for ids in choices]
        for ids in others:
            ratio = None
            if ids in rows and base in rows:
                ratio = decide_ratio(rows[ids][1], rows[base][1], report_data.configurations.estimate_ratio)
            cells.append(tables.make_ratio_cell(ratio))
        table_rows.append(doc.Row(cells, next(iter(rows.values()))[0].tags))
    about = "each choice of devices (hardware.device_ids) with its connections"
    caption = doc.join_sentences(about, "ratios: throughput over that of the first choice, with 95 % intervals")
    numeric = frozenset(columns[1:])
    yield doc.Table(group.make_id("side-by-side", "pairs"), "Choices of devices", columns, table_rows, numeric, caption)


def _describe_devices(ids: str, run_id: str, report_data: ReportData) -> str:
    """Return `0,1 (PIX)`, with the kinds of connection between these devices if the record of the run has them."""
    numbers = [int(number) for number in ids.split() if number.isdecimal()]
    links = report_data.result(run_id).machine.list_links(numbers) if run_id in report_data.detailed_run_ids else []
    return ",".join(map(str, numbers)) + (f" ({', '.join(links)})" if links else "")


def strategies_section(report_data: ReportData) -> doc.Section | None:
    """Return None if there is no row."""
    pooled = report_data.pooled
    if pooled.empty:
        return None
    best = _select_best_rows(pooled)
    blocks: list[doc.Block] = []
    if len(best) < len(pooled):
        text = f"{len(pooled):,} configurations are more than a table can show: these are the {len(best)} that"
        blocks.append(doc.Paragraph(f"{text} come first in throughput among those of their number of devices."))
    blocks.append(tables.make_configuration_table(best, report_data.baseline_name))
    blocks += _list_missing_baselines(best, report_data.unreadable)
    return doc.Section("strategies", "All configurations", blocks)


def _select_best_rows(pooled: pd.DataFrame) -> pd.DataFrame:
    """Select the MAX_ROWS rows that rank best by throughput among their competitors; failed rows come last."""
    rank = (
        pooled.groupby(COMPETING_COLUMNS, dropna=False)[doc.THROUGHPUT]
        .rank(ascending=False, method="min")
        .astype(float)
    )
    first = rank.fillna(float("inf")).sort_values(kind="stable").index[: doc.MAX_ROWS]
    return pooled.loc[pooled.index.isin(first)]


def _list_missing_baselines(frame: pd.DataFrame, unreadable: Unreadable) -> list[doc.Block]:
    """Say how many rows lack a baseline, and which commands measure it."""
    count = sum(bool(tables.find_missing_baselines(row)) for row in frame[tables.BASELINE_COLUMNS].to_dict("records"))
    if not count:
        return []
    commands = make_baseline_commands(frame, unreadable)
    text = f"{count} {'row lacks a baseline' if count == 1 else 'rows lack a baseline'} on one device, and with it"
    more = f" {len(commands) - MAX_COMMANDS} more commands are left out." if len(commands) > MAX_COMMANDS else ""
    title = "Measures them together with what they are compared with"
    return [
        doc.Paragraph(f"{text} speedup and efficiency; the remarks say which.{more}", "warning"),
        doc.Code("\n".join(commands[:MAX_COMMANDS]), "sh", title),
    ]
