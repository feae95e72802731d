"""The section batch_size, and its sentences."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalebench.analysis.batch_size import StepFit, batch_and_step_s, fit_step_time
from scalebench.analysis.repeats import pool_results
from scalebench.analysis.scaling_curves import Curve
from scalebench.core.result import Result
from scalebench.core.spec import HardwareSpec
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.sections import batch_size
from scalebench.report.sections.batch_size import (
    MAX_SENTENCES,
    describe_curve,
    format_half_batch,
    list_terminal_sentences,
)
from scalebench.sweeps.console import Console
from tests.builders import sweeps
from tests.builders.runs import simulated_config
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    build_section,
    get_block,
    get_column,
    get_series,
    list_ids,
    select_blocks,
    write_report_data,
)


def make_run(batch: int, gpus: int = 1, strategy: str = "ddp_gloo", bucket: float = 25.0, **changes: Any) -> Result:
    """A run of `batch` samples a device whose steps take as long as one of ten: batch times the throughput."""
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch)
    result = sweeps.run(strategy, gpus, train=train, **changes)
    result.run_id = "-".join([strategy, str(gpus), str(batch), f"{bucket:g}", *changes])
    for rank in result.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
    result.spec["strategy"]["options"] = {"bucket_cap_mb": bucket}
    result.fingerprint = result.run_id
    return result


def test_curves_are_the_frames_figures(tmp_path: Path) -> None:
    runs = [make_run(batch, gpus) for batch in (100, 10, 1000) for gpus in (1, 2)]
    report_data = write_report_data(tmp_path, [*runs, make_run(10, 4), make_run(10, strategy="horovod_gloo")])
    section = batch_size.section(report_data)
    chart = get_block(section, Chart, "batch-size-throughput")
    assert [series.name for series in chart.series] == ["ddp_gloo, 1 device", "ddp_gloo, 2 devices"]
    assert chart.x.log and chart.x.ticks == [10, 100, 1000] and "batch 10 to 1,000 per device" in chart.title
    of_run = report_data.pooled.set_index("run_id")
    for gpus in (1, 2):
        ran = [f"ddp_gloo-{gpus}-{batch}-25" for batch in (10, 100, 1000)]
        name = f"ddp_gloo, {gpus} device{'s' * (gpus > 1)}"
        for series, columns in (
            (get_series(chart, name), ("throughput_samples_per_s", "throughput_low", "throughput_high")),
            (get_series(get_block(section, Chart, "batch-size-epoch"), name), ("epoch_s",)),
        ):
            assert series.x == [10, 100, 1000] and series.tags["strategy"] == "ddp_gloo"
            for shown, head in zip((series.y, series.low, series.high), columns, strict=False):
                assert list(shown) == [of_run.at[run_id, head] for run_id in ran]
    assert len(set(list_ids(section))) == len(list_ids(section)) == 4
    assert "more is better" in chart.caption and "over blocks of one repeat" in chart.caption


def test_the_table_has_the_gain_of_a_larger_batch(tmp_path: Path) -> None:
    table = get_block(build_section(batch_size, tmp_path, [make_run(10), make_run(100)]), Table, "batch-size-table")
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    assert [row[:3] for row in rows] == [["ddp_gloo, 1 device", "10", "10"], ["ddp_gloo, 1 device", "100", "100"]]
    assert rows[0][4] == "1.00" and rows[1][4].startswith("10.0") and rows[1][4].endswith("]")
    assert table.rows[1].cells[4].value == pytest.approx(10, rel=0.01)


def make_saturating_runs(batch: int, gpus: int = 1) -> list[Result]:
    """Runs of 10 to 10,000 samples a device; throughput rises with the batch up to this one, and then no more."""
    runs = [make_run(size, gpus) for size in (10, 100, 1000, 10000)]
    for run in runs:
        slower = max(1.0, run.scale.batch_per_device / batch)
        for rank in run.ranks:
            rank.block_s = [slower * seconds for seconds in rank.block_s]
    return runs


def test_the_saturating_batch_is_marked_and_named(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path, [*make_saturating_runs(100), *make_saturating_runs(1000, gpus=2)])
    section = batch_size.section(report_data)
    chart = get_block(section, Chart, "batch-size-throughput")
    marks, rates = (
        get_series(chart, "saturating batch"),
        report_data.pooled.set_index("run_id")["throughput_samples_per_s"],
    )
    assert marks.style == "points" and list(marks.x) == [100, 1000]
    assert list(marks.y) == [rates["ddp_gloo-1-100-25"], rates["ddp_gloo-2-1000-25"]]
    assert list(marks.notes) == ["ddp_gloo, 1 device", "ddp_gloo, 2 devices"] and len(marks.point_tags) == 2
    assert all(series.name != "saturating batch" for series in get_block(section, Chart, "batch-size-epoch").series)
    sentences = [block.text for block in select_blocks(section, Paragraph)]
    assert sentences[0].startswith("Saturating batch: 100 per device (ddp_gloo, 1 device): ")
    assert sentences[1].startswith("Saturating batch: 1,000 per device (ddp_gloo, 2 devices): ")
    table = get_block(section, Table, "batch-size-saturation")
    assert get_column(table, "saturating batch") == {"ddp_gloo, 1 device": 100, "ddp_gloo, 2 devices": 1000}
    assert get_column(table, "of the highest")["ddp_gloo, 1 device"] > 0.99
    half = get_column(table, "n_1/2 (95 %)")["ddp_gloo, 1 device"]
    line = fit_step_time(
        batch_and_step_s([row for curve in report_data.curves for row in curve.rows if row["gpus"] == 1])
    )
    assert line is not None and half == line.half_batch


def test_a_curve_that_still_rises_has_no_mark(tmp_path: Path) -> None:
    section = build_section(batch_size, tmp_path, [make_run(10), make_run(100)])
    assert [series.name for series in get_block(section, Chart, "batch-size-throughput").series] == [
        "ddp_gloo, 1 device"
    ]
    assert get_block(section, Table, "batch-size-saturation").rows[0].cells[1].text == "100 or more"
    assert select_blocks(section, Paragraph)[0].text.startswith(
        "No saturating batch up to 100 per device (ddp_gloo, 1 device): 10 has less"
    )


def test_one_batch_is_no_curve(tmp_path: Path) -> None:
    assert build_section(batch_size, tmp_path / "usual") is None
    assert build_section(batch_size, tmp_path / "failed", [sweeps.failed_run()]) is None
    # Strong scaling gives each number of devices a batch of its own, and another strategy is another configuration.
    runs = [sweeps.run("ddp_gloo", n, **sweeps.strong_scaling(40, n)) for n in (1, 2, 4)]
    assert build_section(batch_size, tmp_path / "strong", [*runs, make_run(50, strategy="horovod_gloo")]) is None


def test_options_hardware_and_scaling_are_never_mixed(tmp_path: Path) -> None:
    """Alone in its chart over devices, each of the two buckets would be named `ddp_gloo`."""
    section = build_section(batch_size, tmp_path / "x", [make_run(10), make_run(100, bucket=1.0)])
    assert section is None
    runs = [make_run(batch, bucket=bucket) for batch in (10, 100) for bucket in (25.0, 1.0)]
    chart = get_block(build_section(batch_size, tmp_path / "y", runs), Chart, "batch-size-throughput")
    assert [series.name for series in chart.series] == ["ddp_gloo, 1 device", "ddp_gloo bucket_cap_mb=1.0, 1 device"]
    other = [make_run(100, hardware=HardwareSpec("other")), make_run(1000, hardware=HardwareSpec("other"))]
    charts = select_blocks(
        build_section(batch_size, tmp_path / "z", [make_run(10), make_run(100), *other]), Chart, "batch-size-thr"
    )
    assert [[list(series.x) for series in chart.series] for chart in charts] == [[[10, 100]], [[100, 1000]]]
    assert (
        build_section(
            batch_size, tmp_path / "w", [make_run(10), sweeps.run("ddp_gloo", 1, **sweeps.strong_scaling(40, 1))]
        )
        is None
    )


def test_rows_without_a_distinguishing_column_form_separate_curves(tmp_path: Path) -> None:
    rate = {"train": dataclasses.replace(simulated_config().train, batch_per_device=100, learning_rate=0.5)}
    runs = [make_run(10), make_run(100), sweeps.run("ddp_gloo", 1, run_id="again", **rate)]
    chart = get_block(build_section(batch_size, tmp_path, runs), Chart, "batch-size-throughput")
    assert [list(series.x) for series in chart.series] == [[10, 100]]


def test_text_stays_text(tmp_path: Path) -> None:
    section = build_section(batch_size, tmp_path, [make_run(batch, strategy=SCRIPT) for batch in (10, 100)])
    assert section is not None and all(SCRIPT in block_text(block) for block in section.blocks)


def make_curve(
    rates: dict[int, float], width: float | None = 0.01, gpus: int = 1, start_s: float | None = None
) -> Curve:
    """Limits lie off by the share `width`; without `start_s` its steps are not known."""
    rows = [
        {"batch_per_device": batch, "throughput_samples_per_s": rate, "gpus": gpus,
         "throughput_low": None if width is None else rate * (1 - width),
         "throughput_high": None if width is None else rate * (1 + width),
         "step_s": None if start_s is None else batch * gpus / rate}
        for batch, rate in rates.items()
    ]  # fmt: skip
    return Curve(f"ddp, {gpus} devices", {}, {"model": "mlp"}, rows)


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        (
            {75: 50, 150: 80, 350: 93, 700: 100},
            "saturating batch: 350 per device (ddp, 1 devices): 93 % of the highest throughput, that of 700, "
            "and no neighbour could be it by its interval",
        ),
        (
            {75: 50, 150: 89.5, 350: 95, 700: 100, 1000: 99},
            "saturating batch: 350 per device (ddp, 1 devices): 95 % of the highest throughput, that of 700; "
            "by their intervals 150 could be it",
        ),
        (
            {75: 100, 150: 99},
            "saturating batch: 75 per device or less (ddp, 1 devices): no measured batch has a higher "
            "throughput, and no neighbour could be it by its interval",
        ),
        (
            {75: 50, 5000: 100},
            "no saturating batch up to 5,000 per device (ddp, 1 devices): 75 has less than 90 % of its "
            "throughput, which may rise further, and no neighbour could be it by its interval",
        ),
    ],
)
def test_the_sentence_about_the_saturating_batch(rates: dict[int, float], sentence: str) -> None:
    assert describe_curve(make_curve(rates)) == sentence
    assert str(describe_curve(make_curve(rates, width=None))).endswith(", with no interval to tell neighbours from it")
    assert str(describe_curve(make_curve(rates), "mlp")).count("(mlp with ddp, 1 devices)") == 1


def test_the_step_time_fit_follows_the_saturating_batch() -> None:
    rates = {b: b / (0.01 + 1e-5 * b) for b in (100, 1000, 3000, 4000)}  # n_1/2 1,000, and 100,000 samples/s at most
    sentence = str(describe_curve(make_curve(rates, start_s=0.01)))
    assert "; n_1/2 1,000" in sentence and sentence.endswith(
        "; the highest is 80 % of the limit that the line of its steps approaches"
    )
    assert "n_1/2" not in str(describe_curve(make_curve({10: 10.0, 20: 18.0, 40: 30.0, 80: 40.0})))


def test_one_batch_has_no_sentence() -> None:
    assert describe_curve(make_curve({75: 50})) is None


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(390.0, 450.0, "420 [390, 450]"), (None, None, "420")]
)  # fmt: skip
def test_half_batches(low: float | None, high: float | None, shown: str) -> None:
    assert format_half_batch(StepFit(0.004, 1e-5, 420.0, low, high, 0.99, 0.02, 7)) == shown
    assert format_half_batch(StepFit(0.004, 1e-5, None, None, None, 0.99, 0.02, 7)) == ""


def make_result(batch: int, strategy: str = "ddp_gloo", **changes: Any) -> Result:
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch)
    result = sweeps.run(strategy, 1, train=train, **changes)
    result.run_id = result.fingerprint = f"{strategy}-{batch}"
    return result


def pool(*results: Result) -> pd.DataFrame:
    return pool_results(results, [Path(str(number)) for number in range(len(results))])


def test_a_sweep_over_batches_has_a_line_for_each_curve() -> None:
    assert [line.partition(":")[0] for line in list_terminal_sentences(pool(make_result(10), make_result(20)))] == [
        "saturating batch"
    ]
    assert list_terminal_sentences(pool(make_result(10), make_result(10, "horovod_gloo"), sweeps.failed_run())) == []
    assert (
        len(list_terminal_sentences(pool(make_result(10), make_result(20), sweeps.run("ddp_gloo", 2)))) == 1
    )  # of the one device only
    many = [make_result(batch, f"s{number}") for number in range(MAX_SENTENCES + 2) for batch in (10, 20)]
    sentences = list_terminal_sentences(pool(*many))
    assert len(sentences) == MAX_SENTENCES + 1 and sentences[-1].startswith("saturating batches: 2 more")


def test_the_terminal_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write_results(tmp_path, [make_result(10), make_result(20)])
    Console().print_table([tmp_path])
    lines = capsys.readouterr().out.splitlines()
    (sentence,) = [
        line for line in lines if line.startswith("saturating batch: 10 per device or less (ddp_gloo, 1 device)")
    ]
    assert lines.index(sentence) < next(i for i, line in enumerate(lines) if line.startswith("results:"))
