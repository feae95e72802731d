"""The section `batch_size` of a report: throughput and epoch time over the batch of a device, and the saturating batch,
from which a larger one brings nearly nothing. The terminal shows the same sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from scalebench.analysis.batch_size import (
    BATCH,
    SATURATION_SHARE,
    SaturatingBatch,
    StepFit,
    batch_and_step_s,
    find_saturating_batch,
    fit_step_time,
    make_batch_curves,
)
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.verdicts import decide_ratio, explain_no_verdict
from scalebench.core import units
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_curve_intervals
from scalebench.report.report_data import ReportData

MAX_SENTENCES = 8  # curves described one by one
NEAR_LIMIT = 0.9  # of the fitted limit; a series whose highest throughput is lower has not levelled off
Saturated = Sequence[tuple[Curve, SaturatingBatch]]  # the curves that have a saturating batch
CAPTION = (
    f"saturating batch: the smallest with at least {SATURATION_SHARE:.0%} of the highest measured throughput".replace(
        "%", " %"
    ),
    "could be: the batches that may be it by their 95 % intervals, each against every other one",
    "n_1/2: the batch at which half of a step is spent before its first sample, from the line step = a + b * batch "
    "(least squares of relative deviations); the limit of throughput is 1 / b of each device",
    "worst: the largest deviation of a measured step from that line; if it is large, n_1/2 says little",
)


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no configuration was measured with two batches."""
    batch_curves = [
        replace(curve, rows=[doc.add_epoch_limits(row) for row in curve.rows])
        for curve in make_batch_curves(report_data.curves)
    ]
    groups, left_out = doc.group_curves(batch_curves)
    blocks: list[doc.Block] = [*left_out]
    estimate_ratio = report_data.configurations.estimate_ratio
    for group in groups:
        points = [(curve, find_saturating_batch(curve.rows, estimate_ratio)) for curve in group.curves]
        saturated = [(curve, point) for curve, point in points if point is not None]
        blocks += [*group.paragraphs, *_make_answers(saturated), *_make_charts(group, saturated)]
        blocks += [_make_saturation_table(group, saturated), _make_table(group, estimate_ratio)]
    return doc.Section("batch-size", "Batch size", blocks) if groups else None


def _make_charts(group: doc.CurveGroup, saturated: Saturated) -> Iterator[doc.Chart]:
    intervals = describe_curve_intervals(group.curves)
    charts = (
        (
            doc.THROUGHPUT,
            "throughput",
            "Throughput",
            doc.Axis("samples/s"),
            "samples/s over all devices; more is better",
        ),
        ("epoch_s", "epoch_s", "Epoch", doc.Axis("time per epoch", unit="s"), "time of an epoch; less is better"),
    )
    for column, stem, title, axis, about in charts:
        if lines := doc.make_line_series(group.curves, column, stem, BATCH):
            lines += _mark_saturating_batches(group, saturated) if column == doc.THROUGHPUT else []
            about = f"{about}. A larger batch makes fewer steps per epoch, and may learn less in it"
            axes, caption = (doc.make_batch_axis("batch per device", lines), axis), doc.join_sentences(about, intervals)
            yield group.make_chart("batch_size", title, f"{title} over batch", axes, lines, caption)


def _make_answers(saturated: Saturated) -> Iterator[doc.Paragraph]:
    for curve, point in saturated[:MAX_SENTENCES]:
        text = _describe_saturation(curve, point)
        yield doc.Paragraph(f"{text[0].upper()}{text[1:]}.", "answer", curve.tags)


def _mark_saturating_batches(group: doc.CurveGroup, saturated: Saturated) -> list[doc.Series]:
    """Make one series of points, the saturating batches of all curves."""
    certain = [(curve, point) for curve, point in saturated if not (point.first or point.last)]
    if not certain:
        return []
    x, y = [float(point.batch) for _, point in certain], [point.rate for _, point in certain]
    notes, tags = [curve.name for curve, _ in certain], [curve.tags for curve, _ in certain]
    return [doc.Series("saturating batch", x, y, tags=group.tags, style="points", notes=notes, point_tags=tags)]


def _make_saturation_table(group: doc.CurveGroup, saturated: Saturated) -> doc.Table:
    columns: dict[str, Callable[[SaturationRow], doc.Cell]] = {
        "strategy": lambda row: doc.make_cell(row.curve.name),
        "saturating batch": lambda row: doc.format_cell(row.point.batch, lambda batch: format_batch(row.point)),
        "could be": lambda row: doc.make_cell(", ".join(f"{batch:,}" for batch in row.point.candidates or ())),
        "of the highest": lambda row: doc.format_cell(row.point.share, tables.format_percent),
        "highest at": lambda row: doc.format_cell(row.point.highest, "{:,}".format),
        "n_1/2 (95 %)": lambda row: doc.make_cell(format_half_batch(row.line), row.line and row.line.half_batch),
        "limit, samples/s": lambda row: doc.format_cell(row.limit, "{:,.0f}".format),
        "R²": lambda row: doc.format_cell(row.line and row.line.r_squared, "{:.3f}".format),
        "worst": lambda row: doc.format_cell(row.line and row.line.worst, units.format_percent),
    }
    items = [
        (SaturationRow(curve, point, fit_step_time(batch_and_step_s(curve.rows))), curve.tags)
        for curve, point in saturated
    ]
    title, table_id = "Where a larger batch stops to pay", group.make_id("batch_size", "saturation")
    return doc.build_table(table_id, title, columns, items, ["strategy"], doc.join_sentences(*CAPTION))


class SaturationRow(NamedTuple):
    curve: Curve
    point: SaturatingBatch
    line: StepFit | None

    @property
    def limit(self) -> float | None:
        """The samples/s over all devices that the line of the steps approaches."""
        return None if self.line is None or self.line.limit is None else self.line.limit * self.curve.rows[0]["gpus"]


def _make_table(group: doc.CurveGroup, estimate_ratio: EstimateRatio) -> doc.Table:
    def make_gain(item: doc.CurveRow) -> doc.Cell:
        smallest, row = item[0].rows[0], item[1]
        gain = decide_ratio(row, smallest, estimate_ratio)
        return doc.make_cell("1.00" if row is smallest else tables.format_ratio(gain.value, *gain.limits), gain.value)

    columns: dict[str, Callable[[doc.CurveRow], doc.Cell]] = {
        "strategy": lambda item: doc.make_cell(item[0].name),
        "batch per device": lambda item: doc.format_cell(item[1][BATCH], "{:,}".format),
        "global batch": lambda item: doc.format_cell(item[1]["global_batch"], "{:,}".format),
        "samples/s (95 %)": lambda item: doc.make_cell(tables.format_throughput(item[1]), item[1][doc.THROUGHPUT]),
        "over the smallest": make_gain,
        "epoch (95 %)": lambda item: doc.make_cell(doc.format_duration_column(item[1], "epoch_s"), item[1]["epoch_s"]),
    }
    about = "over the smallest: throughput over that with the smallest batch of the same strategy and devices"
    title, caption = "Batch size", doc.join_sentences(about, describe_curve_intervals(group.curves))
    table_id = group.make_id("batch_size", "table")
    return doc.build_table(table_id, title, columns, group.list_rows()[: doc.MAX_ROWS], ["strategy"], caption)


def list_terminal_sentences(curves: Sequence[Curve], estimate_ratio: EstimateRatio) -> list[str]:
    """Return a sentence for each configuration and device count whose throughput is known with two batches or more."""
    batch_curves = make_batch_curves(curves)
    several = len({curve.tags["model"] for curve in batch_curves}) > 1
    texts = [describe_curve(curve, estimate_ratio, curve.tags["model"] if several else "") for curve in batch_curves]
    described = [text for text in texts if text is not None]
    more = len(described) - MAX_SENTENCES
    rest = [f"saturating batches: {more} more are in the report and in scalebench.load"] if more > 0 else []
    return described[:MAX_SENTENCES] + rest


def describe_curve(curve: Curve, estimate_ratio: EstimateRatio, model: str = "") -> str | None:
    """Return `saturating batch: 700 per device (ddp_gloo, 2 devices): 93 % of the highest throughput, ...`, without a
    full stop; None if there is no curve."""
    point = find_saturating_batch(curve.rows, estimate_ratio)
    return None if point is None else _describe_saturation(curve, point, model)


def _describe_saturation(curve: Curve, point: SaturatingBatch, model: str = "") -> str:
    name = f"({model} with {curve.name})" if model else f"({curve.name})"
    line = fit_step_time(batch_and_step_s(curve.rows))
    parts = [f"{_describe_point(point, name, curve)}{_describe_doubt(point, curve)}"]
    return "; ".join([*parts, *([] if line is None else _describe_line(line, point, curve))])


def format_batch(point: SaturatingBatch) -> str:
    """Return `700`, or `5,000 or more` and `75 or less` if the measured batches end there."""
    if point.last:
        return f"{point.batch:,} or more"
    return f"{point.batch:,} or less" if point.first else f"{point.batch:,}"


def format_half_batch(line: StepFit | None) -> str:
    """Return `420 [390, 450]` samples; empty if the line has none."""
    if line is None or line.half_batch is None:
        return ""
    if line.low is None or line.high is None:
        return units.format_number(line.half_batch)
    return f"{units.format_number(line.half_batch)} [{units.format_number(line.low)}, {units.format_number(line.high)}]"


def _describe_point(point: SaturatingBatch, name: str, curve: Curve) -> str:
    if point.last:
        before = curve.rows[-2]
        return (
            f"no saturating batch up to {point.batch:,} per device {name}: {before[BATCH]:,} has less than "
            f"{100 * SATURATION_SHARE:g} % of its throughput, which may rise further"
        )
    head = f"saturating batch: {point.batch:,} per device{' or less' if point.first else ''} {name}: "
    if point.batch == point.highest:
        return f"{head}no measured batch has a higher throughput"
    return f"{head}{100 * point.share:.0f} % of the highest throughput, that of {point.highest:,}"


def _describe_doubt(point: SaturatingBatch, curve: Curve) -> str:
    others = [f"{batch:,}" for batch in point.candidates or () if batch != point.batch]
    if point.candidates is None:
        return f", which is not sure: {explain_no_verdict(*curve.rows) or 'no interval'}"
    if not others:
        return ", and no neighbour could be it by its interval"
    return f"; by their intervals {' or '.join(others)} could be it"


def _describe_line(line: StepFit, point: SaturatingBatch, curve: Curve) -> list[str]:
    texts = [f"n_1/2 {format_half_batch(line)}"] if line.half_batch is not None else []
    limit = None if line.limit is None else line.limit * curve.rows[0]["gpus"]
    if limit is not None and line.points > 2 and point.highest_rate < NEAR_LIMIT * limit and not point.last:
        share = 100 * point.highest_rate / limit
        texts.append(f"the highest is {share:.0f} % of the limit that the line of its steps approaches")
    return texts
