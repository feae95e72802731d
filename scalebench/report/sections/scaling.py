"""How configurations scale: throughput and efficiency over devices, slopes and node boundaries; the table of all
configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scalebench.analysis.scaling_curves import Curve, find_node_boundaries, find_scaling_limit, fit_slope, plain_rows
from scalebench.report import document as doc
from scalebench.report import spec, tables
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


def _draw_throughput(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Chart]:
    # The samples/s of each bare strategy that these rows are compared with, such as PyTorch's: the highest.
    pooled, bare_ids = report_data.pooled, {row["baseline_bare_id"] for _, row in group.list_rows()}
    bare = pooled[pooled["run_id"].isin(bare_ids) & pooled[doc.THROUGHPUT].notna()]
    rates = bare.groupby("strategy", sort=False)[doc.THROUGHPUT].max()
    ideals = {f"ideal of {name}": (0.0, float(rate)) for name, rate in rates.items()}
    lines = doc.make_lines(group.curves, doc.THROUGHPUT)
    about = "samples/s over all devices in steady state, more is better"
    ideal = "ideal is what the bare baseline, of several the fastest, would give without any loss" if ideals else ""
    axis = doc.Axis("samples/s")
    yield from spec.draw_lines(group, "throughput", "Throughput", lines, axis, about, ideal, ideals=ideals)


def _draw_efficiencies(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Chart]:
    """Draw efficiency and speedup against the first of the usual baselines and the one that the user named; the table
    of slopes has the others, too."""
    baselines = _describe_baselines(group, report_data)
    usual = [kind for kind in baselines if kind != "given"]
    for kind in (*usual[:1], *(kind for kind in baselines if kind == "given")):
        against, axis = baselines[kind].partition(", ")[0], doc.Axis("efficiency", percent=True)
        lines = doc.make_lines(group.curves, f"efficiency_{kind}")
        name, title, about = f"efficiency {kind}", f"Efficiency {against}", "speedup divided by the number of devices"
        about = f"{about}, {baselines[kind]}; more is better"
        yield from spec.draw_lines(group, name, title, lines, axis, about, ideals={"ideal": (1.0, 0.0)})
        lines = [_fit_line(line, curve, kind) for curve in group.curves
                 for line in doc.make_lines([curve], f"speedup_{kind}")]  # fmt: skip
        if any(line.fit for line in lines):  # without a slope, efficiencies say as much
            title, dotted = f"Speedup {against}", "dotted: fitted lines, whose slopes are in the table"
            about, axis = f"speedup {baselines[kind]}, more is better", doc.Axis("speedup")
            name, ideals = f"speedup {kind}", {"ideal": (0.0, 1.0)}
            yield from spec.draw_lines(group, name, title, lines, axis, about, dotted, ideals=ideals)


def _describe_baselines(group: doc.CurveGroup, report_data: ReportData) -> dict[str, str]:
    """Describe the baselines to compare with: self only if it differs from bare, the named one if there is one."""

    def differs(row: doc.Cells) -> bool:
        over_bare, over_self = row["speedup_bare"], row["speedup_self"]
        return over_self is not None and (over_bare is None or abs(over_self / over_bare - 1) > MIN_DIFFERENCE)

    rows = [row for _, row in group.list_rows()]
    kinds = [kind for kind in BASELINES if any(row[f"speedup_{kind}"] is not None for row in rows)]
    if kinds == ["bare", "self"] and not any(map(differs, rows)):
        kinds = ["bare"]
    baselines = {kind: BASELINES[kind] for kind in kinds}
    if report_data.baseline_name is not None and any(row.get("speedup_given") is not None for row in rows):
        baselines["given"] = f"against {report_data.baseline_name}, the named baseline"
    return baselines


def _fit_line(line: doc.Series, curve: Curve, kind: str) -> doc.Series:
    """Return the speedups of a curve, with the line whose slope is in the table where it has one."""
    fitted = fit_slope(curve, kind) if len(curve.rows) >= MIN_SLOPE_POINTS else None
    if fitted is None:
        return line
    # A line through the points would hide the fitted one.
    return replace(line, fit=[fitted.intercept + fitted.speedup.value * gpus for gpus in curve.gpus], style="points")


def _list_slopes(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Table]:
    """Make a row for each curve of MIN_SLOPE_POINTS or more: a line through two says no more than these two."""
    baselines, rows = _describe_baselines(group, report_data), []
    limit_head = f"keeps {100 * report_data.min_efficiency:g} %"
    for curve in group.curves if baselines else ():
        if len(curve.rows) < MIN_SLOPE_POINTS:
            continue
        values: dict[str, Any] = {"strategy": curve.name}
        for kind in baselines:
            label = report_data.baseline_name if kind == "given" else kind
            fitted, limit = fit_slope(curve, kind), find_scaling_limit(curve, report_data.min_efficiency, kind)
            # `4 [2]`; `none` if not even the fewest devices keep the efficiency, empty if no efficiency is known.
            text = f"{limit.gpus or 'none'} [{limit.certain_gpus or 'none'}]"
            values |= {
                f"slope, {label}": fitted and fitted.speedup,
                f"off, {label}": (fitted and fitted.worst, tables.format_whole_percent),
                f"over devices, {label}": fitted and ", ".join(str(count) for count, _ in fitted.points),
                f"{limit_head}, {label}":
                    None if limit.largest_measured is None else doc.make_cell(text, limit.gpus or 0),
            }  # fmt: skip
        rows.append((curve.tags, values))
    about = (
        f"{limit_head}: the most devices up to which efficiency is no less, by the figures and, in brackets, by "
        "the lower limits of their intervals"
    )
    words = {head for _, values in rows for head in values if head.startswith("over")}
    yield spec.make_table(group.make_id("slopes"), "Slopes", rows, words, doc.join_sentences(SLOPE_CAPTION, about))


def _list_node_boundaries(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Table]:
    """Make a row for each node boundary of a curve."""
    kind, about = next(iter((_describe_baselines(group, report_data) or BASELINES).items()))
    rows = []
    for curve in group.curves:
        for jump in find_node_boundaries(curve, report_data.configurations.estimate_ratio, kind):
            before, after = ((share, tables.format_whole_percent) for share in jump.efficiencies)
            devices, nodes = (" to ".join(str(row[name]) for row in jump.rows) for name in ("gpus", "nodes"))
            rows.append((curve.tags, {
                "strategy": curve.name, doc.DEVICES: devices, "nodes": nodes, "efficiency before": before,
                "after": after, "ratio": jump.ratio, "remarks": tables.explain_doubt(jump.ratio, *jump.rows),
            }))  # fmt: skip
    words, caption = (doc.DEVICES, "nodes", "remarks"), doc.join_sentences(f"efficiency {about}", JUMP_CAPTION)
    yield spec.make_table(group.make_id("nodes"), "Node boundaries", rows, words, caption)


scaling_groups = spec.Groups(
    "scaling",
    [_draw_throughput, _draw_efficiencies, _list_slopes, _list_node_boundaries],
    shows=lambda curve, report_data: max(curve.gpus) > 1,
)


def list_configurations(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the table of the MAX_ROWS configurations that rank best by throughput among their competitors, the failed
    ones last, and the commands that measure missing baselines."""
    pooled = report_data.pooled
    if pooled.empty:
        return
    rank = pooled.groupby(COMPETING_COLUMNS, dropna=False)[doc.THROUGHPUT].rank(ascending=False, method="min")
    first = rank.astype(float).fillna(float("inf")).sort_values(kind="stable").index[: doc.MAX_ROWS]
    best = pooled.loc[pooled.index.isin(first)]
    if len(best) < len(pooled):
        text = f"{len(pooled):,} configurations are more than a table can show: these are the {len(best)} that"
        yield doc.Paragraph(f"{text} come first in throughput among those of their number of devices.")
    yield tables.make_configuration_table(best, report_data.baseline_name)
    if count := sum(map(bool, map(tables.find_missing_baselines, plain_rows(best[tables.BASELINE_COLUMNS])))):
        commands = make_baseline_commands(best, report_data.unreadable)
        text = f"{count} {'row lacks a baseline' if count == 1 else 'rows lack a baseline'} on one device, and with it"
        more = f" {len(commands) - MAX_COMMANDS} more commands are left out." if len(commands) > MAX_COMMANDS else ""
        yield doc.Paragraph(f"{text} speedup and efficiency; the remarks say which.{more}", "warning")
        if commands:
            title = "Measures them together with what they are compared with"
            yield doc.Code("\n".join(commands[:MAX_COMMANDS]), "sh", title)
