"""The section `published` of a report: figures of published studies beside those measured here.

They are only shown side by side: no interval, slope or ranking uses a published figure. The terminal shows the table of
each study.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalebench.analysis import published
from scalebench.analysis.published import Study
from scalebench.analysis.scaling_curves import Curve, fit_slope, format_batch, plain_rows
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_curve_intervals
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

INTRODUCTION = "Published figures are shown beside measured ones; nothing in this report is computed from them."
SHARE_QUANTITIES = ("share", "efficiency", "of_tf_cnn", "bandwidth", "cores")  # parts of the names of shares
LABELS = ("model", "strategy", "method", "settings", "hardware", "gpus", "scaling")
FIGURES = (doc.THROUGHPUT, "step_s", "speedup", "efficiency", "slope", "value")
HEADS = {doc.THROUGHPUT: "samples/s", "step_s": "a step", "value": "other"}
MATCHING = ("model", "strategy")  # and the number of devices
COMPARED = (
    "model, strategy, devices, scaling published, scaling here, hardware published, hardware here, batch published, "
    "batch here, samples/s published, samples/s here, speedup published, speedup here, efficiency published, "
    "efficiency here, remarks"
).split(", ")


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no study was named."""
    if report_data.published is None or report_data.published.empty:
        return None
    rows = plain_rows(report_data.published)
    blocks: list[doc.Block] = [doc.Paragraph(INTRODUCTION)]
    for name in dict.fromkeys(row["study"] for row in rows):
        of_study = [row for row in rows if row["study"] == name]
        blocks += _make_study_blocks(published.load_study(name), of_study, report_data)
    return doc.Section("published", "Published figures", blocks)


def _make_study_blocks(study: Study, rows: list[dict[str, Any]], report_data: ReportData) -> Iterator[doc.Block]:
    machines = "; ".join(f"{name}: {text}" for name, text in study.machines.items())
    yield doc.Paragraph(doc.join_sentences(study.title, f"source: {study.source}", machines, *study.notes))
    successful = report_data.pooled[report_data.pooled["status"] == "ok"]
    yield from _make_comparison(study, rows, plain_rows(successful))
    groups, notes = doc.group_curves(report_data.curves)
    yield from notes
    for group in groups:
        yield from _make_efficiency_chart(study, rows, group)
    yield from _make_slope_comparison(study, rows, report_data.curves)
    yield make_study_table(study, rows)


def _make_efficiency_chart(study: Study, rows: Sequence[doc.Cells], group: doc.CurveGroup) -> Iterator[doc.Chart]:
    """Draw the published points of a group's strategies in the chart of their curves, only for the same scaling: a
    curve of weak scaling says nothing about one of strong."""
    matching = [
        row for row in rows
        if all(row[name] == group.shared[name] for name in ("model", "scaling"))
        and row["gpus"] and row["efficiency"] is not None
    ]  # fmt: skip
    curves = [curve for curve in group.curves if curve.tags["strategy"] in {row["strategy"] for row in matching}]
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
    pairs = [
        (row, own)
        for row in rows
        for own in measured
        if any(row[name] is not None for name in (doc.THROUGHPUT, "speedup", "efficiency"))
        and all(row[name] == own[name] for name in (*MATCHING, "gpus"))
    ]
    table_rows = []
    for row, own in pairs:
        cells = [*(doc.make_cell(row[name]) for name in MATCHING), doc.make_cell(str(row["gpus"]), row["gpus"])]
        cells += [doc.make_cell(each[name] or "") for name in ("scaling", "hardware") for each in (row, own)]
        cells += [doc.make_cell(_format_batch(row)), doc.make_cell(format_batch(own))]
        cells += [_figure_cell(row, doc.THROUGHPUT), tables.make_throughput_cell(own)]
        for name, show in (("speedup", tables.format_ratio_column), ("efficiency", tables.format_percent_column)):
            column = f"{name}_{study.against}"
            cells += [_figure_cell(row, name), doc.make_cell(show(own, column), own[column])]
        cells.append(doc.make_cell(_make_remark(row)))
        table_rows.append(doc.Row(cells, {name: own[name] for name in MATCHING}))
    if table_rows:
        numeric_heads = ("devices", "samples/s", "speedup", "efficiency")
        numeric = frozenset(head for head in COMPARED if head.split()[0] in numeric_heads)
        about = f"speedup and efficiency here are against {study.against}, with 95 % intervals"
        title, caption = f"{study.title}: beside what was measured here", doc.join_sentences(about, _cite(study))
        yield doc.Table(_make_id(study, "beside"), title, COMPARED, table_rows, numeric, caption)


def _make_slope_comparison(study: Study, rows: Sequence[doc.Cells], curves: Sequence[Curve]) -> Iterator[doc.Table]:
    """Make the table of the fitted speedup per device, published and measured."""
    table_rows = []
    for row in rows:
        for curve in curves if row["slope"] is not None else ():
            fitted = fit_slope(curve, study.against)
            if fitted is None or any(row[name] != curve.tags[name] for name in MATCHING):
                continue
            own, devices = curve.group, ", ".join(f"{count}" for count, _ in fitted.points)
            texts = [*(row[name] for name in MATCHING), row["scaling"], own["scaling"], row["hardware"],
                     own["hardware"]]  # fmt: skip
            cells = [doc.make_cell(text or "") for text in texts]
            cells += [_figure_cell(row, "slope"), tables.make_ratio_cell(fitted.speedup)]
            cells += [doc.make_cell(devices), doc.make_cell(row["remark"] or "")]
            table_rows.append(doc.Row(cells, {name: curve.tags[name] for name in MATCHING}))
    if table_rows:
        columns = [*MATCHING, "scaling published", "scaling here", "hardware published", "hardware here",
                   "slope published", "slope here", "over devices", "remarks"]  # fmt: skip
        title, numeric = f"{study.title}: slopes beside those measured here", frozenset(columns[6:8])
        yield doc.Table(_make_id(study, "slopes"), title, columns, table_rows, numeric, _cite(study))


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
    figures = {HEADS.get(name, name): [_figure_cell(row, name) for row in rows] for name in FIGURES}
    columns = {
        "table": [doc.make_cell(row["table"].replace("_", " ")) for row in rows],
        **{name: [_make_label_cell(row[name]) for row in rows] for name in LABELS},
        "batch": [doc.make_cell(_format_batch(row)) for row in rows],
        **figures,
    }
    columns = {name: cells for name, cells in columns.items() if any(cell.text for cell in cells)}
    columns["remarks"] = [doc.make_cell(_make_remark(row)) for row in rows]
    columns |= {"where": [doc.make_cell(row["source"]) for row in rows]} if with_source else {}
    table_rows = [
        doc.Row([cells[number] for cells in columns.values()], {name: row[name] for name in MATCHING if row[name]})
        for number, row in enumerate(rows)
    ]
    numeric = frozenset({"gpus", *figures}) & columns.keys()
    title = f"{study.title}: as published"
    return doc.Table(_make_id(study), title, list(columns), table_rows, numeric, _cite(study))


def _make_label_cell(value: str | int | None) -> doc.Cell:
    return doc.Cell("") if value is None else doc.make_cell(str(value), value if isinstance(value, int) else None)


def _make_id(study: Study, *words: str) -> str:
    return "-".join(("published", study.name, *words)).replace("_", "-")


def _cite(study: Study) -> str:
    return f"Source: {study.source}."


def _format_batch(row: doc.Cells) -> str:
    """Return `75 per device`, in strong scaling `32 in all`; empty if the study does not say."""
    size = row["global_batch"] if row["scaling"] == "strong" else row["batch_per_device"]
    return "" if size is None else format_batch({**row, "scaling": row["scaling"] or "weak"})


def _figure_cell(row: doc.Cells, name: str) -> doc.Cell:
    """Make a cell with the digits of the study and no more."""
    value = row[name]
    if value is None:
        return doc.Cell("")
    if name == "value":
        share = any(word in row["quantity"] for word in SHARE_QUANTITIES)
        text = f"{100 * value:.4g} %" if share else f"{value:,.9g}"
        return doc.make_cell(f"{row['quantity'].replace('_', ' ')}: {text}", value)
    if name == "efficiency":
        return doc.make_cell(f"{100 * value:.2f} %", value)
    if name == "step_s":
        return doc.make_cell(f"{1000 * value:.4g} ms", value)
    return doc.make_cell(f"{value:,.6g}" if name == doc.THROUGHPUT else f"{value:.3f}".rstrip("0").rstrip("."), value)


def _make_remark(row: doc.Cells) -> str:
    derived = f"ours: {', '.join(row['derived'].split()).replace('_', ' ')}" if row["derived"] else ""
    return "; ".join(filter(None, (row["settings"] or "", row["remark"] or "", derived)))
