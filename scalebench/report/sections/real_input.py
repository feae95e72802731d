"""The section `real_input` of a report: what real input costs, against generated samples of the same size, and which
Datasets of users are read more slowly than they are trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from scalebench.analysis.identity import CURVE_COLUMNS, column_key
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.verdicts import Row, decide_ratio, explain_no_verdict
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_count, format_number
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.report_data import ReportData

SECTION_ID = "real-input"
GENERATED = "_synthetic"  # imagenet_synthetic stands for imagenet, imagenet_jpeg and imagenet_tfrecord
SHARED_COLUMNS = ("model", "hardware", "machine", "scaling", "gpus", "nodes", "global_batch", *CURVE_COLUMNS)
CAPTION = (
    "ratio: throughput with real input over that with generated samples, with 95 % limits; under 1 is what input costs",
    "longer step: seconds that a step takes longer; waiting: the share of a step in which it waits for its batch, "
    "empty where no probes were made",
)


@dataclass(frozen=True)
class InputCost:
    """The same training with real input and with generated samples; `ratio` is of their throughputs."""

    real: Row
    generated: Row
    ratio: Estimate

    @property
    def step_s(self) -> float:
        """The seconds that a step takes longer with real input."""
        real_s, generated_s = (float(row["global_batch"] / row[doc.THROUGHPUT]) for row in (self.real, self.generated))
        return real_s - generated_s


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no training was measured with both, or faster than its Dataset was read."""
    rows = [row for curve in report_data.curves for row in curve.rows if row[doc.THROUGHPUT]]
    costs = list(compare_inputs(rows, report_data.configurations.estimate_ratio))
    blocks: list[doc.Block] = [
        doc.Paragraph(describe_cost(cost), "answer", doc.get_tags(cost.real)) for cost in costs[: doc.MAX_ROWS]
    ]
    fastest = {row["dataset"]: row for row in sorted(rows, key=lambda row: row[doc.THROUGHPUT])}
    for row in fastest.values():
        training = f"{row['strategy']} on {format_count(row['gpus'], 'device')}"
        if reading := describe_slow_reading(row["dataset"], row["read_samples_per_s"], training, row[doc.THROUGHPUT]):
            blocks.append(doc.Paragraph(reading, "answer", doc.get_tags(row)))
    if costs:
        blocks.append(_make_table(costs))
    return doc.Section(SECTION_ID, "What real input costs", blocks) if blocks else None


def _make_table(costs: list[InputCost]) -> doc.Block:
    columns: dict[str, Callable[[InputCost], doc.Cell]] = {
        "model": lambda cost: doc.make_cell(cost.real["model"]),
        "strategy": lambda cost: doc.make_cell(cost.real["strategy"]),
        "gpus": lambda cost: doc.format_cell(cost.real["gpus"], str),
        "real input": lambda cost: doc.make_cell(cost.real["dataset"]),
        "samples/s": lambda cost: doc.make_cell(tables.format_throughput(cost.real), cost.real[doc.THROUGHPUT]),
        "generated samples/s": lambda cost: doc.make_cell(
            tables.format_throughput(cost.generated), cost.generated[doc.THROUGHPUT]
        ),
        "ratio (95 %)": lambda cost: tables.make_ratio_cell(cost.ratio),
        "longer step": lambda cost: doc.format_cell(cost.step_s, tables.format_seconds),
        "waiting": lambda cost: doc.format_cell(cost.real["data_share"], tables.format_percent),
        "waiting, generated": lambda cost: doc.format_cell(cost.generated["data_share"], tables.format_percent),
    }
    items = [(cost, doc.get_tags(cost.real)) for cost in costs[: doc.MAX_ROWS]]
    words, caption = ("model", "strategy", "real input"), doc.join_sentences(*CAPTION)
    return doc.build_table(SECTION_ID, "Real and generated input", columns, items, words, caption)


def compare_inputs(rows: Iterable[Row], estimate_ratio: EstimateRatio) -> Iterator[InputCost]:
    """Yield the measured rows that differ in nothing but real and generated samples of one kind."""
    generated = {_input_key(row): row for row in rows if row["dataset"].endswith(GENERATED)}
    for row in rows:
        other = None if row["dataset"].endswith(GENERATED) else generated.get(_input_key(row))
        if other is not None:
            yield InputCost(row, other, decide_ratio(row, other, estimate_ratio))


def describe_cost(cost: InputCost) -> str:
    """Return the sentence."""
    real, ratio = cost.real, cost.ratio
    under = f"under {real['strategy']} on {format_count(real['gpus'], 'device')}"
    if ratio.has_limits and ratio.low <= 1 <= ratio.high:
        return f"{real['dataset']} costs nothing that is resolved {under}."
    doubt = "" if ratio.has_limits else f"; not sure: {explain_no_verdict(real, cost.generated)}"
    than = f"{cost.generated['dataset']} {under}"
    return f"{real['dataset']} has {ratio.value:.2f} times the throughput of {than}{doubt}."


def describe_slow_reading(dataset: str, read_rate: float | None, training: str, rate: float | None) -> str | None:
    """Return a sentence on a Dataset that one process read more slowly, in samples/s, than `training` takes samples."""
    if read_rate is None or rate is None or read_rate >= rate:
        return None
    return (
        f"One process read {dataset} into the cache at {format_number(read_rate)} samples/s, and {training} takes "
        f"{format_number(rate)} samples/s from there. A loader that reads during training would need "
        f"{math.ceil(rate / read_rate):,} such processes to keep up; no figure includes that."
    )


def _input_key(row: Row) -> tuple[object, ...]:
    return row["dataset"].partition("_")[0], *column_key(row, SHARED_COLUMNS)
