"""Figures of published studies beside those measured here.

They are only shown side by side: no interval, slope or ranking uses a published figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scalebench.analysis import published
from scalebench.analysis.identity import group_by
from scalebench.analysis.published import Study
from scalebench.analysis.scaling_curves import Curve, fit_slope, format_batch, plain_rows
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.report_data import ReportData

INTRODUCTION = "Published figures are shown beside measured ones; nothing in this report is computed from them."
SHARE_QUANTITIES = ("share", "efficiency", "of_tf_cnn", "bandwidth", "cores")  # parts of the names of shares
LABELS = ("model", "strategy", "method", "settings", "hardware", "gpus", "scaling")
HEADS = {doc.THROUGHPUT: "samples/s", "step_s": "a step", "value": "other"}
MATCHING = ("model", "strategy")  # and the number of devices
# The figures of a study with its digits and no more.
FIGURES: dict[str, Callable[[float], str]] = {
    doc.THROUGHPUT: "{:,.6g}".format,
    "step_s": lambda value: f"{1000 * value:.4g} ms",
    "speedup": lambda value: f"{value:.3f}".rstrip("0").rstrip("."),
    "efficiency": lambda value: f"{100 * value:.2f} %",
    "slope": lambda value: f"{value:.3f}".rstrip("0").rstrip("."),
}


def list_blocks(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield each study that was named: beside what was measured, and as published."""
    if report_data.published is None or report_data.published.empty:
        return
    yield doc.Paragraph(INTRODUCTION)
    measured = plain_rows(report_data.pooled[report_data.pooled["status"] == "ok"])
    for name, rows in group_by(plain_rows(report_data.published), lambda row: str(row["study"])).items():
        study = published.load_study(name)
        machines = "; ".join(f"{name}: {text}" for name, text in study.machines.items())
        yield doc.Paragraph(doc.join_sentences(study.title, f"source: {study.source}", machines, *study.notes))
        yield _compare_rows(study, rows, measured)
        yield _compare_slopes(study, rows, report_data.curves)
        yield _make_study_table(study, rows)


def _compare_rows(study: Study, rows: Sequence[doc.Cells], measured: Sequence[doc.Cells]) -> doc.Table:
    """Make the table of published rows whose model, strategy and device count were measured here, each beside every
    such measured row."""
    table_rows = []
    for row, own in itertools.product(rows, measured):
        has_figure = any(row[name] is not None for name in (doc.THROUGHPUT, "speedup", "efficiency"))
        if not has_figure or any(row[name] != own[name] for name in (*MATCHING, "gpus")):
            continue
        pairs = {name: (row[name], own[name]) for name in ("scaling", "hardware")}
        pairs["batch"] = _format_batch(row), format_batch(own)
        pairs["samples/s"] = _make_figure_cell(row, doc.THROUGHPUT), tables.make_cell(own, doc.THROUGHPUT)
        for name in ("speedup", "efficiency"):
            pairs[name] = _make_figure_cell(row, name), tables.make_cell(own, f"{name}_{study.against}")
        table_rows.append((_get_tags(row), {
            **{name: row[name] for name in MATCHING}, "devices": row["gpus"], **_name_sides(pairs),
            "remarks": _make_remark(row),
        }))  # fmt: skip
    about = f"speedup and efficiency here are against {study.against}, with 95 % intervals"
    title, caption = f"{study.title}: beside what was measured here", doc.join_sentences(about, _cite(study))
    words = ["strategy", "remarks", *_name_sides(dict.fromkeys(("scaling", "hardware", "batch"), ("", "")))]
    return spec.make_table(_make_id(study, "beside"), title, table_rows, words, caption)


def _name_sides(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the values of these pairs by their heads, such as `scaling published` and `scaling here`."""
    return {f"{name} {side}": value for name, values in pairs.items()
            for side, value in zip(("published", "here"), values, strict=True)}  # fmt: skip


def _compare_slopes(study: Study, rows: Sequence[doc.Cells], curves: Sequence[Curve]) -> doc.Table:
    """Make the table of the fitted speedup per device, published and measured."""
    table_rows = []
    for row, curve in itertools.product(rows, curves):
        fitted = None if row["slope"] is None else fit_slope(curve, study.against)
        if fitted is None or any(row[name] != curve.tags[name] for name in MATCHING):
            continue
        pairs: dict[str, Any] = {name: (row[name], curve.group[name]) for name in ("scaling", "hardware")}
        pairs["slope"] = _make_figure_cell(row, "slope"), fitted.speedup
        devices = ", ".join(f"{count}" for count, _ in fitted.points)
        values = {name: row[name] for name in MATCHING} | _name_sides(pairs)
        table_rows.append((_get_tags(row), {**values, "over devices": devices, "remarks": row["remark"]}))
    words = {head for _, values in table_rows for head in values if not head.startswith("slope")}
    title = f"{study.title}: slopes beside those measured here"
    return spec.make_table(_make_id(study, "slopes"), title, table_rows, words, _cite(study))


def _make_study_table(study: Study, rows: Sequence[doc.Cells]) -> doc.Table:
    """Make the table of everything that these rows hold, without empty columns."""
    table_rows = [
        (_get_tags(row), {
            "table": row["table"].replace("_", " "), **{name: row[name] for name in LABELS},
            "batch": _format_batch(row),
            **{HEADS.get(name, name): _make_figure_cell(row, name) for name in (*FIGURES, "value")},
            "remarks": _make_remark(row), "where": row["source"],
        })
        for row in rows
    ]  # fmt: skip
    optional = {head for _, values in table_rows for head in values} - {"remarks", "where"}
    words, title = {*LABELS, "batch", "remarks", "where"} - {"gpus"}, f"{study.title}: as published"
    return spec.make_table(_make_id(study), title, table_rows, words, _cite(study), optional)


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
