"""The section prediction: measured points, predicted lines with their limits, and the table of checks."""

from dataclasses import replace

import pytest

from scalebench.analysis.prediction import predictions
from scalebench.analysis.prediction.extrapolation import load_limits
from scalebench.report.document import Table
from scalebench.report.sections import prediction
from tests.analysis.prediction.test_predictions import make_runs, make_two_models, predict
from tests.builders import sweeps
from tests.report.section_blocks import select_blocks, write_report_data


def test_the_page_predicts_what_the_command_predicts(tmp_path, monkeypatch):
    """The errors of one model give the limits of another one, and correct it on as many devices."""
    monkeypatch.setattr(predictions, "MIN_OWN_RESIDUALS", 1)
    report_data = write_report_data(tmp_path, make_two_models())
    groups = predictions.predict_curves(report_data.curves, lambda row: report_data.result(row["run_id"]))
    tables = select_blocks(prediction.section(report_data), Table, "prediction-table")
    assert len(tables) == len(groups) == 2 and all(group.predictions[0].limits != load_limits() for group in groups)
    assert groups[1].predictions[0].siblings
    for table, group in zip(tables, groups, strict=True):
        forecast = group.predictions[0].forecast([row.cells[1].value for row in table.rows])
        assert [row.cells[2].value for row in table.rows] == forecast.throughput.tolist()
        assert [row.cells[4].text for row in table.rows] == [
            f"{100 * share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
            for share, low, high in zip(
                forecast.efficiency, forecast.efficiency_low, forecast.efficiency_high, strict=True
            )
        ]


def test_strategies_that_scale_alike_share_a_sentence():
    runs = make_runs()
    for run in runs:
        run.spec["hardware"]["this_machine"] = False
    group = predict(runs)
    twice = replace(group, predictions=group.predictions * 2)
    texts = list(prediction.list_sentences(twice, [8], 0.8, 1024))
    assert [text.partition(" % ")[0] for text in texts if "efficiency" in text] == ["ddp_gloo and ddp_gloo keep 80"]
    assert any(text.startswith("All strategies: nothing between nodes was measured") for text in texts)


def test_no_verdict_follows_from_a_model_that_misses_what_was_measured(monkeypatch):
    monkeypatch.setattr(sweeps, "step_s", lambda strategy, gpus: {1: 0.01, 2: 0.05, 4: 0.011}[gpus])
    group = predict(make_runs(gpus=(1, 2, 4)))
    table = prediction.make_table(group, [1, 2, 4, 8])
    assert table.columns[3] == "measured"
    measured = [row.cells[3].value for row in table.rows]
    assert measured[:3] == pytest.approx([1000, 400, 40 / 0.011], rel=0.02) and measured[3] is None
    first, *others = prediction.list_sentences(group, [8], 0.8, 1024)
    assert "misses what was measured, 40" in first and first.endswith(": no verdict follows.") and " on 2 (" in first
    assert not any("efficiency" in text or "To know more" in text for text in others)


def test_one_number_of_devices_gives_no_confidence_and_names_the_base():
    group = predict(make_runs(gpus=(2,)))
    first, *_ = prediction.list_sentences(group, [4], 0.8, 1024)
    assert (
        first.startswith("ddp_gloo keeps 80 % of the throughput per device on 2 up to ") and "confidence" not in first
    )
    assert "fewest measured devices (2)" in str(prediction.make_table(group, [4]).caption)


def test_nothing_is_shown_of_one_device(tmp_path):
    runs = [sweeps.run("bare_torch", 1), sweeps.run("ddp_gloo", 1)]
    assert prediction.section(write_report_data(tmp_path, runs)) is None
