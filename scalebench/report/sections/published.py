"""The section `published` of a report: figures of published studies beside those measured here.

They are only shown side by side: no interval, slope or ranking uses a published figure. The terminal shows the table of
each study.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalebench.analysis import published
from scalebench.analysis.published import Study
from scalebench.analysis.scaling_curves import Curve, fit_slope, format_batch, plain_rows
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.flag_text import describe_curve_intervals
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

INTRODUCTION = "Published figures are shown beside measured ones; nothing in this report is computed from them."
SHARE_QUANTITIES = ("share", "efficiency", "of_tf_cnn", "bandwidth", "cores")  # parts of the names of shares
LABELS = ("model", "strategy", "method", "settings", "hardware", "gpus", "scaling")
HEADS = {doc.THROUGHPUT: "samples/s", "step_s": "a step", "value": "other"}
MATCHING = ("model", "strategy")  # and the number of devices
BESIDE = ("scaling", "hardware", "batch", "samples/s", "speedup", "efficiency")  # published and here
# The figures of a study with its digits and no more.
FIGURES: dict[str, Callable[[float], str]] = {
    doc.THROUGHPUT: "{:,.6g}".format,
    "step_s": lambda value: f"{1000 * value:.4g} ms",
    "speedup": lambda value: f"{value:.3f}".rstrip("0").rstrip("."),
    "efficiency": lambda value: f"{100 * value:.2f} %",
    "slope": lambda value: f"{value:.3f}".rstrip("0").rstrip("."),
}


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no study was named."""
    if report_data.published is None or report_data.published.empty:
        return None
    all_rows = plain_rows(report_data.published)
    measured = plain_rows(report_data.pooled[report_data.pooled["status"] == "ok"])
    groups, notes = doc.group_curves(report_data.curves)
    blocks: list[doc.Block] = [doc.Paragraph(INTRODUCTION)]
    for name in dict.fromkeys(row["study"] for row in all_rows):
        study, rows = published.load_study(name), [row for row in all_rows if row["study"] == name]
        machines = "; ".join(f"{name}: {text}" for name, text in study.machines.items())
        about = doc.join_sentences(study.title, f"source: {study.source}", machines, *study.notes)
        blocks += [doc.Paragraph(about), *_make_comparison(study, rows, measured), *notes]
        blocks += [chart for group in groups for chart in _make_efficiency_chart(study, rows, group)]
        blocks += [*_make_slope_comparison(study, rows, report_data.curves), make_study_table(study, rows)]
    return doc.Section("published", "Published figures", blocks)


def _make_efficiency_chart(study: Study, rows: Sequence[doc.Cells], group: doc.CurveGroup) -> Iterator[doc.Chart]:
    """Draw the published points of a group's strategies in the chart of their curves, only for the same scaling: a
    curve of weak scaling says nothing about one of strong."""
    matching = [
        row for row in rows
        if all(row[name] == group.shared[name] for name in ("model", "scaling"))
        and row["gpus"] and row["efficiency"] is not None
    ]  # fmt: skip
    strategies = {row["strategy"] for row in matching}
    curves = [curve for curve in group.curves if curve.tags["strategy"] in strategies]
    lines = doc.make_line_series(curves, f"efficiency_{study.against}")
    if not lines:
        return
    points: dict[tuple[Any, ...], list[doc.Cells]] = {}  # by table, machine, strategy, batch and setting
    for row in matching:
        if row["strategy"] in {curve.tags["strategy"] for curve in curves}:
            key = (row["table"], row["strategy"], row["hardware"], _format_batch(row), row["settings"])
            points.setdefault(key, []).append(row)
    for (_, strategy, hardware, batch, settings), unordered in points.items():
        of_key = sorted(unordered, key=lambda row: row["gpus"])
        name = ", ".join(filter(None, (f"{strategy} published", hardware, batch and f"batch {batch}", settings)))
        x, y = [float(row["gpus"]) for row in of_key], [row["efficiency"] for row in of_key]
        tags, notes = {"model": of_key[0]["model"], "strategy": strategy}, [row["source"] for row in of_key]
        lines.append(doc.Series(name, x, y, tags=tags, style="published", notes=notes))
    gpus = doc.make_devices_axis(lines).ticks or []
    lines.append(doc.Series("ideal", gpus, [1.0] * len(gpus), style="ideal"))
    caption = doc.join_sentences(
        f"{group.shared['scaling']} scaling here and there",
        f"efficiency here is against {study.against}, there as published",
        "open marks are published, on other hardware",
        describe_curve_intervals(curves),
        _cite(study),
    )
    axes = doc.make_devices_axis(lines), doc.Axis("efficiency", percent=True)
    chart_id = group.make_id("published", study.name)
    yield doc.Chart(chart_id, f"{study.title}: efficiency", *axes, lines, "lines", caption)


def _make_comparison(study: Study, rows: Sequence[doc.Cells], measured: Sequence[doc.Cells]) -> Iterator[doc.Table]:
    """Make the table of published rows whose model, strategy and device count were measured here, each beside every
    such measured row."""
    table_rows = []
    for row, own in itertools.product(rows, measured):
        has_figure = any(row[name] is not None for name in (doc.THROUGHPUT, "speedup", "efficiency"))
        if not has_figure or any(row[name] != own[name] for name in (*MATCHING, "gpus")):
            continue
        values: list[Any] = [row["model"], row["strategy"], row["gpus"]]
        values += [each[name] for name in ("scaling", "hardware") for each in (row, own)]
        values += [_format_batch(row), format_batch(own)]
        values += [_make_figure_cell(row, doc.THROUGHPUT), tables.make_throughput_cell(own)]
        for name, show in (("speedup", tables.format_ratio_column), ("efficiency", tables.format_percent_column)):
            column = f"{name}_{study.against}"
            values += [_make_figure_cell(row, name), doc.make_cell(show(own, column), own[column])]
        table_rows.append((_get_tags(row), [*values, _make_remark(row)]))
    if table_rows:
        pairs = [f"{name} {where}" for name in BESIDE for where in ("published", "here")]
        about = f"speedup and efficiency here are against {study.against}, with 95 % intervals"
        title, caption = f"{study.title}: beside what was measured here", doc.join_sentences(about, _cite(study))
        heads, words = [*MATCHING, "devices", *pairs, "remarks"], ["strategy", *pairs[:6], "remarks"]
        yield spec.make_table(_make_id(study, "beside"), title, heads, table_rows, words, caption)


def _make_slope_comparison(study: Study, rows: Sequence[doc.Cells], curves: Sequence[Curve]) -> Iterator[doc.Table]:
    """Make the table of the fitted speedup per device, published and measured."""
    table_rows = []
    for row, curve in itertools.product(rows, curves):
        fitted = None if row["slope"] is None else fit_slope(curve, study.against)
        if fitted is None or any(row[name] != curve.tags[name] for name in MATCHING):
            continue
        pairs = [each[name] for name in ("scaling", "hardware") for each in (row, curve.group)]
        devices = ", ".join(f"{count}" for count, _ in fitted.points)
        values = [*(row[name] for name in MATCHING), *pairs, _make_figure_cell(row, "slope"), fitted.speedup, devices]
        table_rows.append((_get_tags(row), [*values, row["remark"]]))
    if table_rows:
        heads = [*MATCHING, "scaling published", "scaling here", "hardware published", "hardware here",
                 "slope published", "slope here", "over devices", "remarks"]  # fmt: skip
        words, title = {*heads} - {*heads[6:8]}, f"{study.title}: slopes beside those measured here"
        yield spec.make_table(_make_id(study, "slopes"), title, heads, table_rows, words, _cite(study))


def make_terminal_tables(frame: pd.DataFrame, names: Sequence[str]) -> list[doc.Table]:
    """Make a table for each study, without networks that `frame` does not have, unless it has none of the study's.

    Raises InputError for an unknown study.
    """
    models = {str(model) for model in frame["model"].dropna()}
    all_rows = plain_rows(published.load_published(names))
    study_tables = []
    for name in dict.fromkeys(names):
        rows = [row for row in all_rows if row["study"] == name]
        matching = [row for row in rows if row["model"] is None or row["model"] in models]
        if not any(row["model"] in models for row in matching):
            matching = rows
        table = make_study_table(published.load_study(name), matching, with_source=False)
        count = len(rows) - len(matching)
        caption = table.caption + (f" Left out are {count} rows of other networks." if count else "")
        study_tables.append(replace(table, caption=caption))
    return study_tables


def make_study_table(study: Study, rows: Sequence[doc.Cells], with_source: bool = True) -> doc.Table:
    """Make the table of everything that these rows hold, without empty columns; `with_source` adds where in the study a
    row stands, for which only the page has room."""
    makers: dict[str, Callable[[doc.Cells], Any]] = {
        "table": lambda row: row["table"].replace("_", " "),
        **{name: operator.itemgetter(name) for name in LABELS},
        "batch": _format_batch,
        **{HEADS.get(name, name): functools.partial(_make_figure_cell, name=name) for name in (*FIGURES, "value")},
    }
    makers = {head: make for head, make in makers.items() if any(spec.to_cell(make(row)).text for row in rows)}
    makers |= {"remarks": _make_remark, **({"where": operator.itemgetter("source")} if with_source else {})}
    table_rows = [(_get_tags(row), [make(row) for make in makers.values()]) for row in rows]
    words, title = {*LABELS, "batch", "remarks", "where"} - {"gpus"}, f"{study.title}: as published"
    return spec.make_table(_make_id(study), title, list(makers), table_rows, words, _cite(study))


def _get_tags(row: doc.Cells) -> dict[str, str]:
    return {name: row[name] for name in MATCHING if row[name]}


def _make_id(study: Study, *words: str) -> str:
    return "-".join(("published", study.name, *words)).replace("_", "-")


def _cite(study: Study) -> str:
    return f"Source: {study.source}."


def _format_batch(row: doc.Cells) -> str:
    """Return `75 per device`, in strong scaling `32 in all`; empty if the study does not say."""
    size = row["global_batch"] if row["scaling"] == "strong" else row["batch_per_device"]
    return "" if size is None else format_batch({**row, "scaling": row["scaling"] or "weak"})


def _make_figure_cell(row: doc.Cells, name: str) -> doc.Cell:
    if (value := row[name]) is None or name in FIGURES:
        return doc.format_cell(value, FIGURES.get(name, str))
    is_share = any(word in row["quantity"] for word in SHARE_QUANTITIES)
    text = f"{100 * value:.4g} %" if is_share else f"{value:,.9g}"
    return doc.make_cell(f"{row['quantity'].replace('_', ' ')}: {text}", value)


def _make_remark(row: doc.Cells) -> str:
    derived = f"ours: {', '.join(row['derived'].split()).replace('_', ' ')}" if row["derived"] else ""
    return "; ".join(filter(None, (row["settings"] or "", row["remark"] or "", derived)))
