"""The section `batch_size` of a report: throughput and epoch time over the batch of a device, and where a larger one
stops to pay. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalebench.batch_curves import BATCH, over_batches
from scalebench.batch_knee import SHARE, fit, knee, step_points
from scalebench.curves import Curve, interval
from scalebench.report import batch_words, tables, units
from scalebench.report.blocks import Axis, Block, Cell, Chart, Row, Section, Series, Table, Words
from scalebench.report.drawing import (
    MOST_ROWS,
    THROUGHPUT,
    Cells,
    Group,
    bands,
    cell,
    duration,
    groups,
    sentences,
    series,
    with_epoch_limits,
)
from scalebench.report.evidence import Evidence
from scalebench.stats import ratio_interval

KNEE = (
    f"knee: the smallest batch with at least {SHARE:.0%} of the highest measured throughput".replace("%", " %"),
    "could be: the batches that may be it by their 95 % intervals, each against every other one",
    "n_1/2: the batch at which half of an update is spent before its first sample, of the line step = a + b * batch "
    "(least squares of relative deviations); the limit of throughput is 1 / b of each device",
    "worst: the largest deviation of a measured update from that line; where it is large, n_1/2 says little",
)


def section(evidence: Evidence) -> Section | None:
    """None where no configuration was measured with two batches."""
    curves = [
        replace(curve, rows=[with_epoch_limits(row) for row in curve.rows]) for curve in over_batches(evidence.curves)
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
            caption = sentences(f"{what}. A larger batch makes fewer updates an epoch, and may learn less of it", band)
            x = Axis("batch per device", log=True, ticks=sorted({float(x) for one in drawn for x in one.x}))
            head = f"{title} over batch: {group.title}"
            yield Chart(group.id("batch_size", title), head, x, Axis(axis), drawn, "lines", caption)


def _line(curve: Curve, column: str, stem: str) -> Series | None:
    return series(curve.name, curve.tags, curve.rows, BATCH, column, stem)


def _named(group: Group) -> Iterator[Words]:
    for curve in group.curves[: batch_words.MOST]:
        if (said := batch_words.sentence(curve)) is not None:
            yield Words(f"{said[0].upper()}{said[1:]}.", "answer", curve.tags)


def _marks(group: Group) -> list[Series]:
    """The knees, as points of their own."""
    found = [(curve, point) for curve in group.curves if (point := knee(curve.rows)) is not None]
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
    return Table(group.id("batch_size", "knees"), title, ["strategy", *heads], rows, frozenset(heads), sentences(*KNEE))


def _knee(curve: Curve) -> list[Cell]:
    found = knee(curve.rows)
    if found is None:
        return [Cell("")] * 4
    could_be = "" if found.candidates is None else ", ".join(f"{batch:,}" for batch in found.candidates)
    share = tables.percent({"share": found.share, "share_low": None, "share_high": None}, "share")
    return [
        cell(batch_words.at(found), found.batch),
        cell(could_be),
        cell(share, found.share),
        cell(f"{found.highest:,}", found.highest),
    ]


def _fit(curve: Curve) -> list[Cell]:
    line = fit(step_points(curve.rows))
    if line is None:
        return [Cell("")] * 4
    limit = None if line.limit is None else line.limit * curve.rows[0]["gpus"]
    return [
        cell(batch_words.half(line), line.half_batch),
        Cell("") if limit is None else cell(f"{limit:,.0f}", limit),
        cell(f"{line.r_squared:.3f}", line.r_squared),
        cell(units.share(line.worst), line.worst),
    ]


def _table(group: Group) -> Table:
    heads = [BATCH.replace("_", " "), "global batch", "samples/s (95 %)", "over the smallest", "epoch (95 %)"]
    rows = [Row(_cells(curve, row), curve.tags) for curve in group.curves for row in curve.rows][:MOST_ROWS]
    what = "over the smallest: throughput over that with the smallest batch of the same row's strategy and devices"
    title, caption = f"Batch size: {group.title}", sentences(what, bands(group.curves))
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
    mine, base = (interval(one, THROUGHPUT, "throughput") for one in (row, smallest))
    value = row[THROUGHPUT] / smallest[THROUGHPUT]
    limits = None if mine is None or base is None else ratio_interval(mine, base)
    low, high = (None, None) if limits is None else (limits.low, limits.high)
    return cell(tables.ratio({"gain": value, "gain_low": low, "gain_high": high}, "gain"), value)
