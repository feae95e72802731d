"""Losses over steps, epochs and seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.report.document import Chart, Paragraph, Section, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import training as training_section
from scalebench.results import Quality, read_result, write_result
from tests.sweeps import failed, run, sweep, write
from tests.trainings import training


def told(folder: Path) -> Section:
    found = training_section.losses_section(load_report_data([folder]))
    assert found is not None
    return found


def charts(section: Section) -> dict[str, Chart]:
    return {block.id: block for block in section.blocks if isinstance(block, Chart)}


def test_the_lines_end_where_the_record_does(tmp_path: Path) -> None:
    sweep(tmp_path, ["bare_torch", "ddp_gloo"], gpus=(1, 2))
    evidence, section = load_report_data([tmp_path]), told(tmp_path)
    drawn = charts(section)
    assert list(drawn) == ["learning-0-steps", "learning-0-epochs", "learning-0-seconds"]
    names = [series.name for series in drawn["learning-0-steps"].series]
    assert names == ["bare_torch on 1 device", "ddp_gloo on 1 device", "ddp_gloo on 2 devices"]
    row = evidence.frame[evidence.frame["run_id"] == "ddp_gloo-2-0"].iloc[0]
    steps, epochs, seconds = (chart.series[2] for chart in drawn.values())
    result = evidence.result("ddp_gloo-2-0")
    assert steps.y[-1] == row["final_loss"] == epochs.y[-1] == seconds.y[-1]
    assert steps.x[-1] == row["warmup_steps"] + row["measured_steps"] == 16 + 64
    assert epochs.x[-1] == (16 * 20 + 64 * 20) / 1000
    assert seconds.x[-1] == pytest.approx(4 * 0.1 + 12 * 0.01 + sum(result.ranks[0].block_s))
    assert steps.tags == {"model": "materials_cnn", "strategy": "ddp_gloo", "hardware": "cpu"}
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert [cell.value for cell in table.rows[2].cells][1:] == [
        80,
        1.6,
        seconds.x[-1],
        row["final_loss"],
        row["metric"],
    ]
    assert table.rows[2].cells[5].text == "mse 0.01"


def test_losses_of_the_warm_up_come_first(tmp_path: Path) -> None:
    made = run("ddp_gloo", 1)
    made.ranks[0].warmup_losses = [7.0 - number / 10 for number in range(16)]
    write(tmp_path, [made])
    (series,) = charts(told(tmp_path))["learning-0-steps"].series
    assert (series.x[0], series.y[0]) == (1, 7.0) and len(series.x) == 16 + 32


def test_without_the_size_of_the_data_set_samples_are_told(tmp_path: Path) -> None:
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    made = read_result(tmp_path / "0" / "result.json")
    made.workload.train_samples = None
    write_result(made, tmp_path / "0")
    drawn = charts(told(tmp_path))
    assert "learning-0-epochs" not in drawn and drawn["learning-0-samples"].series[0].x[-1] == 80 * 10


def test_long_series_keep_their_spikes(tmp_path: Path) -> None:
    made = run("ddp_gloo", 1, blocks=2000)
    made.ranks[0].block_losses[1234] = 55.0
    write(tmp_path, [made])
    for chart in charts(told(tmp_path)).values():
        assert len(chart.series[0].x) <= training_section.MAX_CURVE_POINTS and 55.0 in chart.series[0].y


def test_no_more_lines_than_can_be_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_section, "MAX_CURVES", 2)
    sweep(tmp_path, ["ddp_gloo", "horovod_gloo", "lightning_ddp_gloo"], gpus=(1,), repeats=2)
    section = told(tmp_path)
    names = [series.name for series in charts(section)["learning-0-steps"].series]
    assert names == ["ddp_gloo on 1 device", "horovod_gloo on 1 device"], "of several repeats the first"
    said = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert said == ["2 of 3 configurations of materials_cnn on materials are drawn."]


def test_runs_without_a_loss_are_no_part_of_it(tmp_path: Path) -> None:
    write(tmp_path, [failed(), run("ddp_gloo", 1, quality=Quality())])
    assert training_section.losses_section(load_report_data([tmp_path])) is None


def about(folder: Path) -> str:
    (table,) = (block for block in told(folder).blocks if isinstance(block, Table))
    return table.caption


def test_how_long_runs_are_is_said_of_trainings_too(tmp_path: Path) -> None:
    write(tmp_path / "measured", [run("ddp_gloo", 1)])
    write(tmp_path / "trained", [training()])
    assert "not as long as training would be" in about(tmp_path / "measured")
    assert "train.stop" not in about(tmp_path / "measured")
    assert "train.stop" in about(tmp_path / "trained") and "would be" not in about(tmp_path / "trained")
    assert "train.stop" in about(tmp_path) and "The others are as long as their figures" in about(tmp_path)
