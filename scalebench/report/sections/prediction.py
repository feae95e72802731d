"""The section on more devices: what they would give, as a band beside the measured points.

`scalebench predict` shows the same tables and sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import collect
from scalebench.analysis.prediction import predictions as predict
from scalebench.analysis.prediction.predictions import Check, CurvePrediction, PredictedGroup
from scalebench.analysis.ranking import join_with_and
from scalebench.analysis.scaling_curves import Curve, format_group_title
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.core.stats.estimates import CONFIDENCE, scale_estimate
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData
from scalebench.report.tables import THROUGHPUT_HEAD, format_whole_percent

SECTION_ID = "prediction"
DOUBLINGS = 4  # beyond the measured devices, where no numbers are named
MAX_MULTIPLES = 4  # numbers of devices in the first sentence
MAX_PREDICTED = 24  # curves of a page: each one needs its records
CAPTION = (
    "a step model drawn through the measured points, with 95 % limits from the errors of published scaling curves "
    "(docs/guides/predicting.md)",
    "device time per epoch: of all devices together",
    "limited by: the largest predicted loss of a step; growth stands for all losses that grow slowly with the devices",
)
CHECK_CAPTION = "Each measured number of devices, predicted from the smaller ones of its curve alone"


def list_blocks(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield what is predicted of the strategies that were measured on two numbers of devices."""
    groups = doc.group_curves(SECTION_ID, report_data.curves, lambda curve: len(curve.rows) > 1)
    predictable = [curve for group in groups for curve in group.curves if len(curve.rows) > 1][:MAX_PREDICTED]

    def read(row: Mapping[str, Any]) -> Result:
        return report_data.result(str(row["run_id"]))

    for predicted in predict.predict_curves(predictable, read, among=report_data.curves) if predictable else ():
        (group,) = (group for group in groups if group.shared == predicted.group)
        curves = [curve for curve in predictable if curve.group == predicted.group]
        counts, checks = choose_counts(curves), predict.check_curves(curves, read)
        yield from group.paragraphs
        yield from make_paragraphs(predicted, counts, report_data.min_efficiency, counts[-1])
        yield _make_chart(group.make_id("throughput"), curves, predicted, counts)
        yield make_table(predicted, counts, group.make_id("table"))
        if checks:
            yield make_check_table(checks, group.make_id("check"))


def choose_counts(curves: Sequence[Curve]) -> list[int]:
    """Return the largest measured number of devices and the next doublings."""
    most = max((curve.gpus[-1] for curve in curves), default=1)
    return [most * 2**doubling for doubling in range(DOUBLINGS + 1)]


def _make_chart(chart_id: str, curves: Sequence[Curve], predicted: PredictedGroup, counts: Sequence[int]) -> doc.Chart:
    """Draw the measured points and the predicted lines with their limits."""
    lines = [replace(line, style="points") for line in doc.make_lines(curves, doc.THROUGHPUT)]
    for prediction in predicted.predictions:
        forecasts = [each for each in map(prediction.forecast, counts) if each.throughput and each.fits]
        rates = [each.throughput for each in forecasts if each.throughput]
        y, low, high = ([getattr(rate, name) for rate in rates] for name in ("value", "low", "high"))
        x = [float(each.devices) for each in forecasts]
        lines.append(doc.Series(f"{prediction.name}, predicted", x, y, low, high, prediction.curve.tags))
    axes = replace(doc.make_axis("gpus", lines), log=True), doc.Axis("samples/s")
    caption = doc.join_sentences("points: measured; lines: predicted", CAPTION[0])
    return doc.Chart(chart_id, "Measured and predicted throughput", *axes, lines, caption=caption)


def make_table(predicted: PredictedGroup, counts: Sequence[int], table_id: str = SECTION_ID) -> doc.Table:
    """Make a row for each strategy and number of devices."""
    rows = []
    for prediction, forecast in ((each, each.forecast(count)) for each in predicted.predictions for count in counts):
        rate, fits = forecast.throughput, forecast.fits
        missing = doc.Cell("fewer samples than devices" if rate is None else "does not fit")
        share, hours = (forecast.efficiency, forecast.device_hours_per_epoch) if rate and fits else (None, None)
        rows.append((prediction.curve.tags, {
            "strategy": prediction.name, doc.DEVICES: forecast.devices,
            THROUGHPUT_HEAD: (rate, units.format_rate) if rate and fits else missing,
            "measured": (prediction.find_measured(forecast.devices), "{:,.0f}".format),
            "efficiency": (share, format_whole_percent),
            "limited by": forecast.limited_by if rate else "",
            "device time per epoch": (hours, units.format_device_hours),
        }))  # fmt: skip
    bases = sorted({prediction.points[0].devices for prediction in predicted.predictions})
    base = f"efficiency: throughput per device over that of the fewest measured devices ({', '.join(map(str, bases))})"
    caption, title = doc.join_sentences(CAPTION[0], base, *CAPTION[1:]), format_group_title(predicted.group)
    optional = ("measured", "device time per epoch")
    return spec.make_table(table_id, f"Predicted: {title}", rows, ["limited by"], caption, optional)


def make_paragraphs(
    predicted: PredictedGroup, counts: Sequence[int], share: float, most: int
) -> Iterator[doc.Paragraph]:
    """Yield what more devices bring, how far each strategy scales, which are tied, and what is not known."""
    matching = [prediction for prediction in predicted.predictions if not prediction.list_missed()]
    yield from _describe_multiples(matching, counts)
    for prediction in predicted.predictions:
        # A model that is off what was measured says nothing of more devices.
        parts = [f"{rate:,.0f} samples/s on {devices:,} (predicted {units.format_rate(forecast)})"
                 for devices, rate, forecast in prediction.list_missed()]  # fmt: skip
        if parts:
            text = f"{prediction.name}: the model misses what was measured, {join_with_and(parts)}: no verdict follows."
            yield doc.Paragraph(text)
    for reach, names in collect((_describe_reach(each, share, most), each.name) for each in matching).items():
        yield doc.Paragraph(f"{join_with_and(names)} {'keeps' if len(names) == 1 else 'keep'} {reach}", "answer")
    sentences = [*_describe_ranking(matching, counts[-1])]
    sentences += [f"{name} is not predicted: {reason}." for name, reason in predicted.reasons.items()]
    remarks = ((text, each.name) for each in predicted.predictions for text in each.list_remarks(counts[-1]))
    for remark, names in collect(remarks).items():
        about = "All strategies" if 1 < len(names) == len(predicted.predictions) else join_with_and(names)
        sentences.append(f"{about}: {remark}.")
    if max(most, *counts) > predict.MAX_MEASURED_DEVICES:
        sentences.append(f"Beyond {predict.MAX_MEASURED_DEVICES:,} devices no measurement backs this.")
    yield from map(doc.Paragraph, sentences)


def _describe_multiples(predictions: Sequence[CurvePrediction], counts: Sequence[int]) -> Iterator[doc.Paragraph]:
    """Yield `8 devices: 3.90 [1.70, 5.80], 16: 5.10 [1.90, 9.80] times one (ddp).` of the strategy that is the fastest
    on the most of them."""
    if not (ranked := predict.rank_predictions(predictions, counts[-1])):
        return
    fastest = next(prediction for prediction in predictions if prediction.name == ranked[0][0])
    first, last, texts = fastest.points[0].devices, fastest.points[-1].devices, list[str]()
    for forecast in map(fastest.forecast, [count for count in counts if count > last][:MAX_MULTIPLES]):
        if forecast.efficiency is not None and forecast.fits:
            ratio = scale_estimate(forecast.efficiency, forecast.devices / first)
            texts.append(f"{forecast.devices:,}{'' if texts else ' devices'}: {units.format_ratio(ratio)}")
    if texts:
        base = "one" if first == 1 else f"{first:,}"
        yield doc.Paragraph(f"{', '.join(texts)} times {base} ({fastest.name}).", "answer")


def _describe_reach(prediction: CurvePrediction, share: float, most: int) -> str:
    reach = prediction.find_reach(share, most)

    def describe(count: int | None) -> str:
        if count is None:
            return "at no number of devices"
        end = ", all of a node" if count == prediction.max_devices else " or more" if count >= most else ""
        return f"up to {units.format_count(count, 'device')}{end}"

    doubling = ""
    if reach.poor_doubling is not None:
        pair = f"{reach.poor_doubling:,} to {2 * reach.poor_doubling:,}"
        doubling = f" From {pair} devices throughput grows by less than {predict.MIN_DOUBLING_GAIN:g} times."
    first, how_far = prediction.points[0].devices, describe(reach.by_figures)
    if prediction.is_rankable:
        how_far += f", with {100 * CONFIDENCE:g} % confidence {describe(reach.surely)}"
    else:
        how_far += ", by the model: one number of devices was measured"
    base = "efficiency" if first == 1 else f"of the throughput per device on {first:,}"
    return f"{100 * share:g} % {base} {how_far}.{doubling}"


def _describe_ranking(predictions: Sequence[CurvePrediction], devices: int) -> Iterator[str]:
    """Say which strategies are tied with the fastest, and how much slower the others are."""
    unranked = [prediction.name for prediction in predictions if not prediction.is_rankable]
    if len(predictions) > 1 and unranked:
        yield f"Not ranked, since one device does not tell: {join_with_and(unranked)}; gpus=2 does."
    ranked = predict.rank_predictions(predictions, devices)
    if len(ranked) < 2:
        return
    (fastest, best), tied = ranked[0], [name for name, rate in ranked if rate.high >= ranked[0][1].low]
    slower = [f"{name} slower by {100 * (1 - rate.high / best.low):.0f}-{100 * (1 - rate.low / best.high):.0f} %"
              for name, rate in ranked if rate.high < best.low]  # fmt: skip
    first = f"{join_with_and(tied)} tied" if len(tied) > 1 else f"{fastest} fastest"
    yield f"{devices:,} devices: {'; '.join([first, *slower])}."


def make_check_table(checks: Sequence[Check], table_id: str = f"{SECTION_ID}-check") -> doc.Table:
    """Make a row for each check; all are of one workload."""
    rows = [
        (check.curve.tags, {
            "strategy": check.curve.name, "from": ", ".join(str(point.devices) for point in check.seen),
            doc.DEVICES: check.row["gpus"], "predicted (95 %)": (check.predicted, units.format_rate),
            "measured": doc.make_cell(f"{check.row[RATE]:,.0f}", check.row[RATE]),
            "error": doc.make_cell(f"{100 * check.error:+.1f} %", check.error), "holds": "yes" if check.holds else "no",
        })
        for check in checks
    ]  # fmt: skip
    mean, hits = sum(abs(check.error) for check in checks) / len(checks), sum(check.holds for check in checks)
    caption = doc.join_sentences(
        CHECK_CAPTION, f"mean error {100 * mean:.1f} %, {hits} of {len(checks)} in their interval"
    )
    title = f"Predictions of what was measured: {format_group_title(checks[0].curve.group)}"
    return spec.make_table(table_id, title, rows, ["holds"], caption)
