"""Batches: throughput and epoch time over the batch of a device with the saturating batch, from which a larger one
brings nearly nothing; more devices or a larger batch.

The terminal shows the sentences about saturating batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalebench.analysis import batches
from scalebench.analysis.batches import BATCH, SATURATION_SHARE, DevicesOrBatch, SaturatingBatch
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.verdicts import decide_ratio, explain_no_verdict
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.flag_text import describe_intervals
from scalebench.report.report_data import ReportData
from scalebench.report.tables import THROUGHPUT_HEAD

MAX_SENTENCES = 8  # curves described one by one
THROUGHPUT_CAPTION = (
    "samples/s over all devices; more is better. The saturating batch is the smallest with at least "
    f"{100 * SATURATION_SHARE:.0f} % of the highest measured throughput"
)
CHOICES = "devices-or-batch"
CHOICES_CAPTION = (
    "N devices of b samples beside one device of N * b: as many samples in a step, and as many steps per epoch. "
    "Ratio: throughput of N devices over that of one, with 95 % limits over repeats; above 1 the devices win."
)
FEWER_STEPS = "a larger batch makes fewer steps per epoch, and may learn less in it"


def _describe_groups(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the saturating batches of a group's curves, and the charts that show them."""
    points = [(curve, batches.find_saturating_batch(curve.rows, report_data.configurations.estimate_ratio))
              for curve in group.curves]  # fmt: skip
    saturated = [(curve, point) for curve, point in points if point is not None]
    for curve, point in saturated[:MAX_SENTENCES]:
        yield doc.Paragraph(doc.join_sentences(_describe_saturation(curve, point)), "answer", curve.tags)
    certain = [(curve, point) for curve, point in saturated if not (point.first or point.last)]
    marks = doc.Series(
        "saturating batch", [float(point.batch) for _, point in certain], [point.rate for _, point in certain],
        tags=group.tags, style="points", notes=[curve.name for curve, _ in certain],
        point_tags=[curve.tags for curve, _ in certain],
    )  # fmt: skip
    for name, column, axis, about in (
        ("Throughput", doc.THROUGHPUT, doc.Axis("samples/s"), THROUGHPUT_CAPTION),
        ("Epoch", "epoch_s", doc.Axis("time per epoch", unit="s"), "time of an epoch; less is better"),
    ):
        lines = doc.make_lines(group.curves, column, BATCH)
        lines += [marks] if certain and lines and name == "Throughput" else []
        yield from spec.draw_lines(group, name, f"{name} over batch", lines, axis, about, FEWER_STEPS, x=BATCH)


def _list_batches(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Table]:
    rows = []
    for curve, row in group.list_rows():
        gain = decide_ratio(row, curve.rows[0], report_data.configurations.estimate_ratio)
        rows.append((curve.tags, {
            "strategy": curve.name, "batch per device": row[BATCH], "global batch": row["global_batch"],
            THROUGHPUT_HEAD: tables.make_cell(row, doc.THROUGHPUT),
            "over the smallest": doc.make_cell("1.00", gain.value) if row is curve.rows[0] else gain,
            "epoch (95 %)": tables.make_cell(row, "epoch_s"),
        }))  # fmt: skip
    about = "over the smallest: throughput over that with the smallest batch of the same strategy and devices"
    caption = doc.join_sentences(about, describe_intervals(row for _, row in group.list_rows()))
    yield spec.make_table(group.make_id("table"), "Batch size", rows, caption=caption)


batch_groups = spec.Groups("batch-size", [_describe_groups, _list_batches], prepare=batches.make_batch_curves)


def list_terminal_sentences(curves: Sequence[Curve], estimate_ratio: EstimateRatio) -> list[str]:
    """Return a sentence for each configuration and device count whose throughput is known with two batches or more."""
    batch_curves = batches.make_batch_curves(curves)
    several = len({curve.tags["model"] for curve in batch_curves}) > 1
    texts = [describe_curve(curve, estimate_ratio, curve.tags["model"] if several else "") for curve in batch_curves]
    sentences = [text for text in texts if text is not None]
    rest = "saturating batches: {} more are in the report and in scalebench.load"
    return doc.limit_texts(sentences, MAX_SENTENCES, rest)


def describe_curve(curve: Curve, estimate_ratio: EstimateRatio, model: str = "") -> str | None:
    """Return `saturating batch: 700 per device (ddp_gloo, 2 devices): 93 % of the highest throughput, ...`, without a
    full stop; None if there is no curve."""
    point = batches.find_saturating_batch(curve.rows, estimate_ratio)
    return None if point is None else _describe_saturation(curve, point, model)


def _describe_saturation(curve: Curve, point: SaturatingBatch, model: str = "") -> str:
    name = f"({model} with {curve.name})" if model else f"({curve.name})"
    if point.last:
        text = (
            f"no saturating batch up to {point.batch:,} per device {name}: {curve.rows[-2][BATCH]:,} has less than "
            f"{100 * SATURATION_SHARE:g} % of its throughput, which may rise further"
        )
    else:
        share = f"{100 * point.share:.0f} % of the highest throughput, that of {point.highest:,}"
        how = "no measured batch has a higher throughput" if point.batch == point.highest else share
        text = f"saturating batch: {point.batch:,} per device{' or less' if point.first else ''} {name}: {how}"
    others = [f"{batch:,}" for batch in point.candidates or () if batch != point.batch]
    if point.candidates is None:
        text += f", which is not sure: {explain_no_verdict(*curve.rows) or 'no interval'}"
    elif not others:
        text += ", and no neighbour could be it by its interval"
    else:
        text += f"; by their intervals {' or '.join(others)} could be it"
    return text


def compare_devices_and_batches(report_data: ReportData) -> Iterator[doc.Block]:
    """Compare N devices with one device at N times the batch."""
    pairs = batches.compare_devices_with_batch(report_data.curves, report_data.configurations.estimate_ratio)
    # The winner at the largest device count of each strategy counts, against the same strategy if possible.
    largest: dict[tuple[str, ...], DevicesOrBatch] = {}
    for pair in sorted(pairs, key=lambda pair: (-pair.many_devices["gpus"], -pair.many_devices["global_batch"])):
        largest.setdefault((*doc.get_tags(pair.many_devices).values(), str(pair.same_strategy)), pair)
    for key, pair in largest.items():
        if pair.same_strategy or (*key[:-1], "True") not in largest:
            yield doc.Paragraph(_describe_choice(pair), "answer", doc.get_tags(pair.many_devices))
    run_ids = {row["run_id"] for pair in pairs for row in (pair.many_devices, pair.one_device)}
    for group in doc.group_curves(CHOICES, batches.make_batch_curves(report_data.curves)):
        # Throughput over the samples of a step, of the curves that appear in a pair.
        curves = [curve for curve in group.curves if any(row["run_id"] in run_ids for row in curve.rows)]
        lines = doc.make_lines(curves, doc.THROUGHPUT, "global_batch")
        about = "samples/s over all devices; more is better. Above each other: the same batch on more or fewer devices"
        if len(lines) > 1:
            title, selection = "Throughput over the global batch", replace(group, curves=curves)
            axis = doc.Axis("samples/s")
            yield from spec.draw_lines(selection, "throughput", title, lines, axis, about, x="global_batch")
    yield _make_choice_table(pairs)


def _describe_choice(pair: DevicesOrBatch) -> str:
    many, single, ratio = pair.many_devices, pair.one_device, pair.throughput
    devices = f"{many['gpus']} devices of {many[BATCH]:,} samples ({many['strategy']})"
    one_device = f"one of {single[BATCH]:,} ({single['strategy']})"
    doubt = tables.explain_doubt(ratio, many, single)
    return f"{devices} have {ratio.value:.2f} times the throughput of {one_device}{doubt and f', {doubt}'}."


def _make_choice_table(pairs: Sequence[DevicesOrBatch]) -> doc.Table:
    rows = []
    for pair in pairs:
        many, single = pair.many_devices, pair.one_device
        rows.append((doc.get_tags(many), {
            "model": many["model"], "strategy": many["strategy"], doc.DEVICES: many["gpus"],
            "batch per device": many[BATCH], "samples/s": tables.make_cell(many, doc.THROUGHPUT),
            "one device": single["strategy"], "its batch": single[BATCH],
            "its samples/s": tables.make_cell(single, doc.THROUGHPUT), "ratio (95 %)": pair.throughput,
        }))  # fmt: skip
    title = "N devices or N times the batch"
    return spec.make_table(f"{CHOICES}-choices", title, rows, ("strategy", "one device"), CHOICES_CAPTION)
