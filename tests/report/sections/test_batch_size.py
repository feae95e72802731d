"""Curves over the batch of a device: one a configuration and number of devices, where it was varied."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalebench.batch_knee import fit, step_points
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.sections.batch_size import section
from scalebench.results import Result
from scalebench.spec import HardwareSpec
from tests import sweeps
from tests.helpers import null_config
from tests.report.section_blocks import SCRIPT, column, evidence, ids, named, of_kind, one, texts


def batched(batch: int, gpus: int = 1, strategy: str = "ddp_gloo", bucket: float = 25.0, **changes: Any) -> Result:
    """A run of `batch` samples a device whose steps take as long as one of ten: batch times the throughput."""
    train = dataclasses.replace(null_config().train, batch_per_device=batch)
    made = sweeps.run(strategy, gpus, train=train, **changes)
    made.run_id = "-".join([strategy, str(gpus), str(batch), f"{bucket:g}", *changes])
    for rank in made.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
    made.spec["strategy"]["options"] = {"bucket_cap_mb": bucket}
    made.fingerprint = made.run_id
    return made


def test_curves_are_the_frames_figures(tmp_path: Path) -> None:
    runs = [batched(batch, gpus) for batch in (100, 10, 1000) for gpus in (1, 2)]
    found = evidence(tmp_path, [*runs, batched(10, 4), batched(10, strategy="horovod_gloo")])
    made = section(found)
    chart = one(made, Chart, "batch-size-throughput")
    assert [series.name for series in chart.series] == ["ddp_gloo, 1 device", "ddp_gloo, 2 devices"]
    assert chart.x.log and chart.x.ticks == [10, 100, 1000] and "batch 10 to 1,000 per device" in chart.title
    of_run = found.pooled.set_index("run_id")
    for gpus in (1, 2):
        ran = [f"ddp_gloo-{gpus}-{batch}-25" for batch in (10, 100, 1000)]
        name = f"ddp_gloo, {gpus} device{'s' * (gpus > 1)}"
        for series, columns in (
            (named(chart, name), ("throughput_samples_per_s", "throughput_low", "throughput_high")),
            (named(one(made, Chart, "batch-size-epoch"), name), ("epoch_s",)),
        ):
            assert series.x == [10, 100, 1000] and series.tags["strategy"] == "ddp_gloo"
            for shown, head in zip((series.y, series.low, series.high), columns, strict=False):
                assert list(shown) == [of_run.at[run_id, head] for run_id in ran]
    assert len(set(ids(made))) == len(ids(made)) == 4
    assert "more is better" in chart.caption and "over blocks of one repeat" in chart.caption


def test_the_table_says_what_a_larger_batch_gives(tmp_path: Path) -> None:
    table = one(section(evidence(tmp_path, [batched(10), batched(100)])), Table, "batch-size-table")
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    assert [row[:3] for row in rows] == [["ddp_gloo, 1 device", "10", "10"], ["ddp_gloo, 1 device", "100", "100"]]
    assert rows[0][4] == "1.00" and rows[1][4].startswith("10.0") and rows[1][4].endswith("]")
    assert table.rows[1].cells[4].value == pytest.approx(10, rel=0.01)


def full_from(batch: int, gpus: int = 1) -> list[Result]:
    """Runs of 10 to 10,000 samples a device; throughput rises with the batch up to this one, and then no more."""
    runs = [batched(one, gpus) for one in (10, 100, 1000, 10000)]
    for run in runs:
        slower = max(1.0, run.scale.batch_per_device / batch)
        for rank in run.ranks:
            rank.block_s = [slower * seconds for seconds in rank.block_s]
    return runs


def test_the_knee_is_marked_and_named(tmp_path: Path) -> None:
    found = evidence(tmp_path, [*full_from(100), *full_from(1000, gpus=2)])
    made = section(found)
    chart = one(made, Chart, "batch-size-throughput")
    marks, rates = named(chart, "saturating batch"), found.pooled.set_index("run_id")["throughput_samples_per_s"]
    assert marks.style == "points" and list(marks.x) == [100, 1000]
    assert list(marks.y) == [rates["ddp_gloo-1-100-25"], rates["ddp_gloo-2-1000-25"]]
    assert list(marks.notes) == ["ddp_gloo, 1 device", "ddp_gloo, 2 devices"] and len(marks.point_tags) == 2
    assert all(series.name != "saturating batch" for series in one(made, Chart, "batch-size-epoch").series)
    said = [block.text for block in of_kind(made, Paragraph)]
    assert said[0].startswith("Saturating batch: 100 per device (ddp_gloo, 1 device): ")
    assert said[1].startswith("Saturating batch: 1,000 per device (ddp_gloo, 2 devices): ")
    table = one(made, Table, "batch-size-saturation")
    assert column(table, "saturating batch") == {"ddp_gloo, 1 device": 100, "ddp_gloo, 2 devices": 1000}
    assert column(table, "of the highest")["ddp_gloo, 1 device"] > 0.99
    half = column(table, "n_1/2 (95 %)")["ddp_gloo, 1 device"]
    line = fit(step_points([row for curve in found.curves for row in curve.rows if row["gpus"] == 1]))
    assert line is not None and half == line.half_batch


def test_a_curve_that_still_rises_has_no_mark(tmp_path: Path) -> None:
    made = section(evidence(tmp_path, [batched(10), batched(100)]))
    assert [series.name for series in one(made, Chart, "batch-size-throughput").series] == ["ddp_gloo, 1 device"]
    assert one(made, Table, "batch-size-saturation").rows[0].cells[1].text == "100 or more"
    assert of_kind(made, Paragraph)[0].text.startswith(
        "No saturating batch up to 100 per device (ddp_gloo, 1 device): 10 has less"
    )


def test_one_batch_is_no_curve(tmp_path: Path) -> None:
    assert section(evidence(tmp_path / "usual")) is None
    assert section(evidence(tmp_path / "failed", [sweeps.failed()])) is None
    # Strong scaling gives each number of devices a batch of its own, and another strategy is another configuration.
    runs = [sweeps.run("ddp_gloo", n, **sweeps.strong(40, n)) for n in (1, 2, 4)]
    assert section(evidence(tmp_path / "strong", [*runs, batched(50, strategy="horovod_gloo")])) is None


def test_options_hardware_and_scaling_are_never_mixed(tmp_path: Path) -> None:
    """Alone in its chart over devices, each of the two buckets would be named `ddp_gloo`."""
    made = section(evidence(tmp_path / "x", [batched(10), batched(100, bucket=1.0)]))
    assert made is None
    runs = [batched(batch, bucket=bucket) for batch in (10, 100) for bucket in (25.0, 1.0)]
    chart = one(section(evidence(tmp_path / "y", runs)), Chart, "batch-size-throughput")
    assert [series.name for series in chart.series] == ["ddp_gloo, 1 device", "ddp_gloo bucket_cap_mb=1.0, 1 device"]
    other = [batched(100, hardware=HardwareSpec("other")), batched(1000, hardware=HardwareSpec("other"))]
    charts = of_kind(section(evidence(tmp_path / "z", [batched(10), batched(100), *other])), Chart, "batch-size-thr")
    assert [[list(series.x) for series in chart.series] for chart in charts] == [[[10, 100]], [[100, 1000]]]
    assert section(evidence(tmp_path / "w", [batched(10), sweeps.run("ddp_gloo", 1, **sweeps.strong(40, 1))])) is None


def test_rows_that_nothing_tells_apart_are_curves_of_their_own(tmp_path: Path) -> None:
    rate = {"train": dataclasses.replace(null_config().train, batch_per_device=100, learning_rate=0.5)}
    runs = [batched(10), batched(100), sweeps.run("ddp_gloo", 1, run_id="again", **rate)]
    chart = one(section(evidence(tmp_path, runs)), Chart, "batch-size-throughput")
    assert [list(series.x) for series in chart.series] == [[10, 100]]


def test_text_stays_text(tmp_path: Path) -> None:
    made = section(evidence(tmp_path, [batched(batch, strategy=SCRIPT) for batch in (10, 100)]))
    assert made is not None and all(SCRIPT in texts(block) for block in made.blocks)
