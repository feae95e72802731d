"""Figures of published studies beside those measured here.

They are only shown side by side: no interval, slope or ranking uses a published figure. The terminal shows the table of
each study.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalebench.analysis import published
from scalebench.analysis.identity import group_by
from scalebench.analysis.published import Study
from scalebench.analysis.scaling_curves import Curve, fit_slope, format_batch, plain_rows
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

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
    groups, notes = doc.group_curves("published", report_data.curves)
    for name, rows in group_by(plain_rows(report_data.published), lambda row: str(row["study"])).items():
        study = published.load_study(name)
        machines = "; ".join(f"{name}: {text}" for name, text in study.machines.items())
        yield doc.Paragraph(doc.join_sentences(study.title, f"source: {study.source}", machines, *study.notes))
        yield _compare_rows(study, rows, measured)
        yield from notes
        yield from (chart for group in groups for chart in _draw_efficiencies(study, rows, group))
        yield _compare_slopes(study, rows, report_data.curves)
        yield make_study_table(study, rows)


def _draw_efficiencies(study: Study, rows: Sequence[doc.Cells], group: doc.CurveGroup) -> Iterator[doc.Chart]:
    """Draw the published points of a group's strategies in the chart of their curves, only for the same scaling: a
    curve of weak scaling says nothing about one of strong."""
    matching = [
        row for row in rows
        if all(row[name] == group.shared[name] for name in ("model", "scaling"))
        and row["gpus"] and row["efficiency"] is not None
    ]  # fmt: skip
    strategies = {row["strategy"] for row in matching}
    curves = [curve for curve in group.curves if curve.tags["strategy"] in strategies]
    lines = doc.make_lines(curves, f"efficiency_{study.against}")
    if not lines:
        return
    measured = [row for row in matching if row["strategy"] in {curve.tags["strategy"] for curve in curves}]
    points = group_by(measured, lambda row: (*(row[name] for name in ("table", "strategy", "hardware")),
                                             _format_batch(row), row["settings"]))  # fmt: skip
    for (_, strategy, hardware, batch, settings), unordered in points.items():
        of_key = sorted(unordered, key=lambda row: row["gpus"])
        name = ", ".join(filter(None, (f"{strategy} published", hardware, batch and f"batch {batch}", settings)))
        x, y = [float(row["gpus"]) for row in of_key], [row["efficiency"] for row in of_key]
        tags, notes = {"model": of_key[0]["model"], "strategy": strategy}, [row["source"] for row in of_key]
        lines.append(doc.Series(name, x, y, tags=tags, style="published", notes=notes))
    yield from spec.draw_lines(
        replace(group, curves=curves), study.name, f"{study.title}: efficiency", lines,
        doc.Axis("efficiency", percent=True), f"{group.shared['scaling']} scaling here and there",
        f"efficiency here is against {study.against}, there as published",
        "open marks are published, on other hardware", _cite(study), ideals={"ideal": (1.0, 0.0)},
    )  # fmt: skip


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
    table_rows = [
        (_get_tags(row), {
            "table": row["table"].replace("_", " "), **{name: row[name] for name in LABELS},
            "batch": _format_batch(row),
            **{HEADS.get(name, name): _make_figure_cell(row, name) for name in (*FIGURES, "value")},
            "remarks": _make_remark(row), **({"where": row["source"]} if with_source else {}),
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
