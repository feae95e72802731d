"""The section prediction: measured points, predicted lines with their limits, and the table of checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.sections import prediction
from tests.analysis.prediction.test_predictions import make_runs, predict
from tests.builders import sweeps
from tests.report.section_blocks import build_section, get_block, get_series, select_blocks, write_report_data


def test_a_line_with_limits_begins_at_the_last_measured_point(tmp_path: Path) -> None:
    section = build_section(prediction, tmp_path)
    chart = get_block(section, Chart, "prediction-throughput")
    measured, line = get_series(chart, "ddp_gloo"), get_series(chart, "ddp_gloo, predicted")
    assert measured.style == "points" and list(measured.x) == [1, 2, 4]
    assert list(line.x) == [4, 8, 16, 32, 64] and line.y[0] == pytest.approx(measured.y[-1])
    for y, (low, high) in zip(line.y, line.limits, strict=True):
        assert low is not None and high is not None and low <= y <= high
    table = get_block(section, Table, "prediction-table")
    assert [row.cells[1].value for row in table.rows[:5]] == list(line.x)
    assert [row.cells[2].value for row in table.rows[:5]] == pytest.approx(list(line.y))


def test_answers_and_checks_stand_beside_the_band(tmp_path: Path) -> None:
    section = build_section(prediction, tmp_path)
    answers = [block.text for block in select_blocks(section, Paragraph) if block.kind == "answer"]
    assert any(text.startswith("ddp_gloo keeps 80 %") for text in answers)
    checks = get_block(section, Table, "prediction-check")
    assert {row.cells[2].text for row in checks.rows} == {"4"}


def test_strategies_that_scale_alike_share_a_sentence() -> None:
    group = predict(make_runs())
    twice = replace(group, predictions=group.predictions * 2)
    texts = list(prediction.list_sentences(twice, [8], 0.8, 1024))
    assert [text.partition(" % ")[0] for text in texts if "efficiency" in text] == ["ddp_gloo and ddp_gloo keep 80"]
    assert any(text.startswith("All strategies: nothing between nodes was measured") for text in texts)


def test_nothing_is_shown_of_one_device(tmp_path: Path) -> None:
    runs = [sweeps.run("bare_torch", 1), sweeps.run("ddp_gloo", 1)]
    assert prediction.section(write_report_data(tmp_path, runs)) is None
