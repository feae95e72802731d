"""The section `batch_size` of a report: throughput and epoch time over the batch of a device, and where a larger one
stops to pay. Layer 3.

Where a larger batch stops to pay, in words. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from scalebench.analysis.batch_size import BATCH, SATURATION_SHARE, SaturatingBatch, StepFit, fit_step_time, find_saturating_batch, make_batch_curves, batch_and_step_s
from scalebench.analysis.scaling_curves import Curve, make_curves, estimate_of
from scalebench.core import units
from scalebench.core.stats.estimates import divide_estimates
from scalebench.report import tables
from scalebench.report.document import (
    MOST_ROWS,
    THROUGHPUT,
    Axis,
    Block,
    Cell,
    Cells,
    Chart,
    Group,
    Row,
    Section,
    Series,
    Table,
    Words,
    bands,
    cell,
    duration,
    groups,
    series,
    with_epoch_limits,
)
from scalebench.report.document import sentences as document_sentences
from scalebench.report.report_data import Evidence

if TYPE_CHECKING:
    import pandas as pd

MOST = 8  # curves told of one by one
FAR = 0.9  # of the fitted limit; a series whose highest throughput is below it has not come to its end


def sentences(pooled: pd.DataFrame) -> list[str]:
    """One for each configuration and number of devices of which the throughput is known with two batches or more."""
    if (pooled.groupby("gpus", dropna=False)[BATCH].nunique() < 2).all():
        return []  # without the second that curves of ten thousand rows take
    found = make_batch_curves(make_curves(pooled))
    several = len({curve.tags["model"] for curve in found}) > 1
    said = [sentence(curve, curve.tags["model"] if several else "") for curve in found]
    told = [one for one in said if one is not None]
    more = len(told) - MOST
    return told[:MOST] + ([f"knees: {more} more are in the report and by scalebench.load"] if more > 0 else [])


def sentence(curve: Curve, of: str = "") -> str | None:
    """`knee: 700 per device (ddp_gloo, 2 devices): 93 % of the highest throughput, that at 5,000; ...`, without a full
    stop; None where there is no curve."""
    found = find_saturating_batch(curve.rows)
    if found is None:
        return None
    who = f"({of} with {curve.name})" if of else f"({curve.name})"
    line = fit_step_time(batch_and_step_s(curve.rows))
    parts = [
        f"{_head(found, who, curve)}{_doubt(found)}",
        *([] if line is None else _batch_words_line(line, found, curve)),
    ]
    return "; ".join(parts)


def at(found: SaturatingBatch) -> str:
    """`700`; `5,000 or more`, `75 or less` where what was measured ends there."""
    if found.last:
        return f"{found.batch:,} or more"
    return f"{found.batch:,} or less" if found.first else f"{found.batch:,}"


def half(line: StepFit) -> str:
    """`420 [390, 450]` samples; empty where the line has none."""
    if line.half_batch is None:
        return ""
    if line.low is None or line.high is None:
        return units.format_number(line.half_batch)
    return f"{units.format_number(line.half_batch)} [{units.format_number(line.low)}, {units.format_number(line.high)}]"


def _head(found: SaturatingBatch, who: str, curve: Curve) -> str:
    share = f"{100 * found.share:.0f} %"
    if found.last:
        before = curve.rows[-2]
        return (
            f"no knee up to {found.batch:,} per device {who}: {before[BATCH]:,} has less than {100 * SATURATION_SHARE:g} % of its "
            "throughput, which may rise beyond"
        )
    head = f"knee: {found.batch:,} per device{' or less' if found.first else ''} {who}: "
    if found.batch == found.highest:
        return f"{head}no measured batch has a higher throughput"
    return f"{head}{share} of the highest throughput, that of {found.highest:,}"


def _doubt(found: SaturatingBatch) -> str:
    others = [f"{batch:,}" for batch in found.candidates or () if batch != found.batch]
    if found.candidates is None:
        return ", with no interval to tell neighbours from it"
    if not others:
        return ", and no neighbour could be it by its interval"
    return f"; by their intervals {' or '.join(others)} could be it"


def _batch_words_line(line: StepFit, found: SaturatingBatch, curve: Curve) -> list[str]:
    said = [f"n_1/2 {half(line)}"] if line.half_batch is not None else []
    limit = None if line.limit is None else line.limit * curve.rows[0]["gpus"]
    if limit is not None and line.points > 2 and found.highest_rate < FAR * limit and not found.last:
        said.append(f"the highest is {100 * found.highest_rate / limit:.0f} % of what the line of its updates goes to")
    return said


KNEE = (
    f"knee: the smallest batch with at least {SATURATION_SHARE:.0%} of the highest measured throughput".replace("%", " %"),
    "could be: the batches that may be it by their 95 % intervals, each against every other one",
    "n_1/2: the batch at which half of an update is spent before its first sample, of the line step = a + b * batch "
    "(least squares of relative deviations); the limit of throughput is 1 / b of each device",
    "worst: the largest deviation of a measured update from that line; where it is large, n_1/2 says little",
)


def section(evidence: Evidence) -> Section | None:
    """None where no configuration was measured with two batches."""
    curves = [
        replace(curve, rows=[with_epoch_limits(row) for row in curve.rows]) for curve in make_batch_curves(evidence.curves)
    ]
    found, words = groups(curves)
    blocks: list[Block] = [*words]
    for group in found:
        blocks += [*_named(group), *group.words, *_charts(group), _knees(group), _table(group)]
    return Section("batch-size", "Batch size", blocks) if found else None


def _charts(group: Group) -> Iterator[Chart]:
    band = bands(group.curves)
    told = (
        (THROUGHPUT, "throughput", "Throughput", "samples/s", "samples/s over all devices; more is better"),
        ("epoch_s", "epoch_s", "Epoch", "seconds an epoch", "seconds of an epoch; less is better"),
    )
    for column, stem, title, axis, what in told:
        drawn = [one for curve in group.curves if (one := _line(curve, column, stem)) is not None]
        if drawn:
            drawn += _marks(group) if column == THROUGHPUT else []
            caption = document_sentences(
                f"{what}. A larger batch makes fewer updates an epoch, and may learn less of it", band
            )
            x = Axis("batch per device", log=True, ticks=sorted({float(x) for one in drawn for x in one.x}))
            head = f"{title} over batch: {group.title}"
            yield Chart(group.id("batch_size", title), head, x, Axis(axis), drawn, "lines", caption)


def _line(curve: Curve, column: str, stem: str) -> Series | None:
    return series(curve.name, curve.tags, curve.rows, BATCH, column, stem)


def _named(group: Group) -> Iterator[Words]:
    for curve in group.curves[:MOST]:
        if (said := sentence(curve)) is not None:
            yield Words(f"{said[0].upper()}{said[1:]}.", "answer", curve.tags)


def _marks(group: Group) -> list[Series]:
    """The knees, as points of their own."""
    found = [(curve, point) for curve in group.curves if (point := find_saturating_batch(curve.rows)) is not None]
    known = [(curve, point) for curve, point in found if not (point.first or point.last)]
    if not known:
        return []
    xs, ys = [float(point.batch) for _, point in known], [point.rate for _, point in known]
    notes, tags = [curve.name for curve, _ in known], [curve.tags for curve, _ in known]
    return [Series("knee", xs, ys, tags=group.tags, style="points", notes=notes, point_tags=tags)]


def _knees(group: Group) -> Table:
    heads = ["knee", "could be", "of the highest", "highest at", "n_1/2 (95 %)", "limit, samples/s", "R²", "worst"]
    rows = [Row([cell(curve.name), *_knee(curve), *_fit(curve)], curve.tags) for curve in group.curves]
    title = f"Where a larger batch stops to pay: {group.title}"
    return Table(
        group.id("batch_size", "knees"), title, ["strategy", *heads], rows, frozenset(heads), document_sentences(*KNEE)
    )


def _knee(curve: Curve) -> list[Cell]:
    found = find_saturating_batch(curve.rows)
    if found is None:
        return [Cell("")] * 4
    could_be = "" if found.candidates is None else ", ".join(f"{batch:,}" for batch in found.candidates)
    share = tables.percent({"share": found.share, "share_low": None, "share_high": None}, "share")
    return [
        cell(at(found), found.batch),
        cell(could_be),
        cell(share, found.share),
        cell(f"{found.highest:,}", found.highest),
    ]


def _fit(curve: Curve) -> list[Cell]:
    line = fit_step_time(batch_and_step_s(curve.rows))
    if line is None:
        return [Cell("")] * 4
    limit = None if line.limit is None else line.limit * curve.rows[0]["gpus"]
    return [
        cell(half(line), line.half_batch),
        Cell("") if limit is None else cell(f"{limit:,.0f}", limit),
        cell(f"{line.r_squared:.3f}", line.r_squared),
        cell(units.format_percent(line.worst), line.worst),
    ]


def _table(group: Group) -> Table:
    heads = [BATCH.replace("_", " "), "global batch", "samples/s (95 %)", "over the smallest", "epoch (95 %)"]
    rows = [Row(_cells(curve, row), curve.tags) for curve in group.curves for row in curve.rows][:MOST_ROWS]
    what = "over the smallest: throughput over that with the smallest batch of the same row's strategy and devices"
    title, caption = f"Batch size: {group.title}", document_sentences(what, bands(group.curves))
    return Table(group.id("batch_size", "table"), title, ["strategy", *heads], rows, frozenset(heads), caption)


def _cells(curve: Curve, row: Cells) -> list[Cell]:
    return [
        cell(curve.name),
        *(cell(f"{row[name]:,}", row[name]) for name in (BATCH, "global_batch")),
        cell(tables.throughput(dict(row)), row[THROUGHPUT]),
        _gain(row, curve.rows[0]),
        cell(duration(row, "epoch_s"), row["epoch_s"]),
    ]


def _gain(row: Cells, smallest: Cells) -> Cell:
    if row is smallest:
        return cell("1.00", 1.0)
    mine, base = (estimate_of(one, THROUGHPUT, "throughput") for one in (row, smallest))
    value = row[THROUGHPUT] / smallest[THROUGHPUT]
    limits = None if mine is None or base is None else divide_estimates(mine, base)
    low, high = (None, None) if limits is None else (limits.low, limits.high)
    return cell(tables.ratio({"gain": value, "gain_low": low, "gain_high": high}, "gain"), value)
