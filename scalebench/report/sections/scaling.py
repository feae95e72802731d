"""The parts of a report about how configurations scale: throughput and efficiency over devices, slopes and node
boundaries; choices of devices; the table of all configurations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalebench.analysis.identity import CURVE_COLUMNS, curve_key, name_curves
from scalebench.analysis.scaling_curves import Curve, find_node_boundaries, find_scaling_limit, fit_slope
from scalebench.analysis.verdicts import decide_ratio
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.flag_text import describe_curve_intervals
from scalebench.report.repeat_commands import make_baseline_commands
from scalebench.report.report_data import ReportData

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


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if nothing was measured on several devices."""
    groups, left_out = doc.group_curves(
        report_data.curves, lambda members: max(max(curve.gpus) for curve in members) > 1
    )
    blocks: list[doc.Block] = [*left_out]
    pooled = report_data.pooled
    for group in groups:
        rows = [row for curve in group.curves for row in curve.rows]
        baselines = _describe_baselines(rows, report_data.baseline_name)
        lines = doc.make_line_series(group.curves, doc.THROUGHPUT, "throughput")
        # The samples/s of each bare strategy that these rows are compared with, such as PyTorch's: the highest.
        bare = pooled[pooled["run_id"].isin({row["baseline_bare_id"] for row in rows}) & pooled[doc.THROUGHPUT].notna()]
        rates = bare.groupby("strategy", sort=False)[doc.THROUGHPUT].max()
        ideals = {f"ideal of {name}": (0.0, float(rate)) for name, rate in rates.items()}
        about = "samples/s over all devices in steady state, more is better"
        ideal = "ideal is what the bare baseline, of several the fastest, would give without any loss" if ideals else ""
        chart = _make_chart(group, "throughput", "Throughput", doc.Axis("samples/s"), lines, ideals, about, ideal)
        blocks += [*group.paragraphs, chart]
        # Charts show the first of the usual baselines and the one that the user named; tables show the others, too.
        usual = [kind for kind in baselines if kind != "given"]
        for kind in (*usual[:1], *(kind for kind in baselines if kind == "given")):
            against = baselines[kind].partition(", ")[0]
            lines, axis = doc.make_line_series(group.curves, f"efficiency_{kind}"), doc.Axis("efficiency", percent=True)
            about = f"speedup divided by the number of devices, {baselines[kind]}; more is better"
            title = f"Efficiency {against}"
            blocks.append(_make_chart(group, f"efficiency {kind}", title, axis, lines, {"ideal": (1.0, 0.0)}, about))
            lines, about = _fit_speedups(group.curves, kind), f"speedup {baselines[kind]}, more is better"
            if any(line.fit for line in lines):  # without a slope, efficiencies say as much
                title, dotted = f"Speedup {against}", "dotted: fitted lines, whose slopes are in the table"
                axis, ideals = doc.Axis("speedup"), {"ideal": (0.0, 1.0)}
                blocks.append(_make_chart(group, f"speedup {kind}", title, axis, lines, ideals, about, dotted))
        heads = {kind: str(report_data.baseline_name) if kind == "given" else kind for kind in baselines}
        blocks += _make_slope_table(group, heads, report_data.min_efficiency)
        blocks += _make_jump_table(group, report_data, *next(iter((baselines or BASELINES).items())))
    return doc.Section("scaling", "Scaling", blocks, folded=len(groups) == 1) if groups else None


def _describe_baselines(rows: Sequence[doc.Cells], baseline_name: str | None) -> dict[str, str]:
    """Describe the baselines to compare with: self only if it differs from bare, the named one if there is one."""

    def differs(row: doc.Cells) -> bool:
        over_bare, over_self = row["speedup_bare"], row["speedup_self"]
        return over_self is not None and (over_bare is None or abs(over_self / over_bare - 1) > MIN_DIFFERENCE)

    kinds = [kind for kind in BASELINES if any(row[f"speedup_{kind}"] is not None for row in rows)]
    if kinds == ["bare", "self"] and not any(map(differs, rows)):
        kinds = ["bare"]
    named = {"given": f"against {baseline_name}, the named baseline"} if baseline_name is not None else {}
    has_named = any(row.get("speedup_given") is not None for row in rows)
    return {kind: BASELINES[kind] for kind in kinds} | (named if has_named else {})


def _fit_speedups(curves: Iterable[Curve], kind: str) -> list[doc.Series]:
    """Make the speedups of each curve, with the line whose slope is in the table where it has one."""
    lines = []
    for curve in curves:
        series = doc.make_line_series([curve], f"speedup_{kind}")
        if (fitted := fit_slope(curve, kind) if len(curve.rows) >= MIN_SLOPE_POINTS else None) is not None:
            fit = [fitted.intercept + fitted.speedup.value * row["gpus"] for row in curve.rows]
            # A line through the points would hide the fitted one.
            series = [replace(line, fit=fit, style="points") for line in series]
        lines += series
    return lines


def _make_chart(
    group: doc.CurveGroup,
    figure: str,
    title: str,
    axis: doc.Axis,
    lines: list[doc.Series],
    ideals: Mapping[str, tuple[float, float]],
    *about: str,
) -> doc.Chart:
    """Make a chart over devices; `ideals` are lines, each of a level and a slope per device."""
    x = doc.make_devices_axis(lines)
    gpus = list(x.ticks or [])
    series = [
        doc.Series(name, gpus, [level + slope * count for count in gpus], tags=group.tags, style="ideal")
        for name, (level, slope) in ideals.items()
    ]
    caption = doc.join_sentences(*about, describe_curve_intervals(group.curves))
    return group.make_chart("scaling", figure, title, (x, axis), [*lines, *series], caption)


def _make_slope_table(
    group: doc.CurveGroup, baselines: Mapping[str, str], min_efficiency: float
) -> Iterator[doc.Table]:
    """Make a row for each curve of MIN_SLOPE_POINTS or more: a line through two says no more than these two.

    `baselines` maps what speedups are against (bare, self, given) to a label.
    """
    keeps_head, rows = f"keeps {100 * min_efficiency:g} %", []
    for curve in group.curves if baselines else ():
        if len(curve.rows) < MIN_SLOPE_POINTS:
            continue
        values: list[Any] = [curve.name]
        for kind in baselines:
            fitted, limit = fit_slope(curve, kind), find_scaling_limit(curve, min_efficiency, kind)
            values += [None] * 3 if fitted is None else [
                fitted.speedup, doc.make_cell(tables.format_percent(fitted.worst), fitted.worst),
                ", ".join(str(count) for count, _ in fitted.points),
            ]  # fmt: skip
            # `4 [2]`; `none` if not even the fewest devices keep the efficiency, empty if no efficiency is known.
            again = f"; again {', '.join(map(str, limit.regained_gpus))}" if limit.regained_gpus else ""
            text = f"{limit.gpus or 'none'} [{limit.certain_gpus or 'none'}]{again}"
            values.append(None if limit.largest_measured is None else doc.make_cell(text, limit.gpus or 0))
        rows.append((curve.tags, values))
    if rows:
        names = ("slope", "off", "over devices", keeps_head)
        heads = ["strategy", *(f"{name}, {label}" for label in baselines.values() for name in names)]
        about = (
            f"{keeps_head}: the most devices up to which efficiency is no less, by the figures and, in brackets, by "
            "the lower limits of their intervals"
        )
        table_id, caption = group.make_id("scaling", "slopes"), doc.join_sentences(SLOPE_CAPTION, about)
        yield spec.make_table(
            table_id, "Slopes", heads, rows, [name for name in heads if name.startswith("over")], caption
        )


def _make_jump_table(group: doc.CurveGroup, report_data: ReportData, kind: str, about: str) -> Iterator[doc.Table]:
    """Make a row for each node boundary of a curve; `about` describes the baseline `kind`."""
    rows = []
    for curve in group.curves:
        for jump in find_node_boundaries(curve, report_data.configurations.estimate_ratio, kind):
            steps = (" to ".join(str(row[name]) for row in jump.rows) for name in ("gpus", "nodes"))
            shares = (doc.make_cell(tables.format_percent(share), share) for share in jump.efficiencies)
            remark = tables.explain_doubt(jump.ratio, *jump.rows)
            rows.append((curve.tags, [curve.name, *steps, *shares, jump.ratio, remark]))
    if rows:
        words = (doc.DEVICES, "nodes", "remarks")
        heads = ("strategy", *words[:2], "efficiency before", "after", "ratio", "remarks")
        table_id, caption = group.make_id("scaling", "nodes"), doc.join_sentences(f"efficiency {about}", JUMP_CAPTION)
        yield spec.make_table(table_id, "Node boundaries", heads, rows, words, caption)


def _make_pair_table(section: str, group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Table]:
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
    base, *others = choices = list(dict.fromkeys(ids for rows in by_row.values() for ids in rows))
    heads = {}  # `0,1 (PIX)`, with the kinds of connection between these devices if the record of a run has them
    for ids in choices:
        numbers = [int(number) for number in ids.split() if number.isdecimal()]
        run_id = str(next(rows[ids][1]["run_id"] for rows in by_row.values() if ids in rows))
        links = report_data.result(run_id).machine.list_links(numbers) if run_id in report_data.detailed_run_ids else []
        heads[ids] = ",".join(map(str, numbers)) + (f" ({', '.join(links)})" if links else "")
    estimate_ratio, table_rows = report_data.configurations.estimate_ratio, []
    for (gpus, rest), rows in by_row.items():
        values: list[Any] = [names[rest], gpus]
        values += (tables.make_throughput_cell(rows[ids][1]) if ids in rows else None for ids in choices)
        for ids in others:
            is_in_both = ids in rows and base in rows
            values.append(decide_ratio(rows[ids][1], rows[base][1], estimate_ratio) if is_in_both else None)
        table_rows.append((next(iter(rows.values()))[0].tags, values))
    columns = ["strategy", doc.DEVICES, *(f"{heads[ids]}, samples/s" for ids in choices)]
    columns += [f"{heads[ids]} / {heads[base]}" for ids in others]
    about = "each choice of devices (hardware.device_ids) with its connections"
    caption = doc.join_sentences(about, "ratios: throughput over that of the first choice, with 95 % intervals")
    yield spec.make_table(group.make_id(section, "pairs"), "Choices of devices", columns, table_rows, caption=caption)


pairs_section = spec.SectionSpec("side-by-side", "Side by side", [_make_pair_table])


def strategies_section(report_data: ReportData) -> doc.Section | None:
    """Return None if there is no row."""
    pooled = report_data.pooled
    if pooled.empty:
        return None
    # The table has the MAX_ROWS rows that rank best by throughput among their competitors; failed rows come last.
    rank = pooled.groupby(COMPETING_COLUMNS, dropna=False)[doc.THROUGHPUT].rank(ascending=False, method="min")
    first = rank.astype(float).fillna(float("inf")).sort_values(kind="stable").index[: doc.MAX_ROWS]
    best = pooled.loc[pooled.index.isin(first)]
    blocks: list[doc.Block] = []
    if len(best) < len(pooled):
        text = f"{len(pooled):,} configurations are more than a table can show: these are the {len(best)} that"
        blocks.append(doc.Paragraph(f"{text} come first in throughput among those of their number of devices."))
    blocks.append(tables.make_configuration_table(best, report_data.baseline_name))
    if count := sum(map(bool, map(tables.find_missing_baselines, best[tables.BASELINE_COLUMNS].to_dict("records")))):
        commands = make_baseline_commands(best, report_data.unreadable)
        text = f"{count} {'row lacks a baseline' if count == 1 else 'rows lack a baseline'} on one device, and with it"
        more = f" {len(commands) - MAX_COMMANDS} more commands are left out." if len(commands) > MAX_COMMANDS else ""
        title = "Measures them together with what they are compared with"
        blocks.append(doc.Paragraph(f"{text} speedup and efficiency; the remarks say which.{more}", "warning"))
        blocks.append(doc.Code("\n".join(commands[:MAX_COMMANDS]), "sh", title))
    return doc.Section("strategies", "All configurations", blocks)
