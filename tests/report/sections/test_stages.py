"""The section on models in stages: what it tells of each, and of which runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import pipeline_stages
from tests.helpers import record
from tests.report.section_blocks import evidence, of_kind, one
from tests.test_staged import chain, run


def test_a_row_for_each_stage_and_a_sentence_for_each_run(tmp_path: Path) -> None:
    made = [run(chain(0.006, 0.003), run_id="a"), record(run_id="b")]
    section = pipeline_stages.section(evidence(tmp_path, made))
    table = one(section, Table)
    assert [[cell.value for cell in row.cells] for row in table.rows] == [
        ["pipeline_gpipe on 2 devices", 0, 0, "dense0", 1000, 4096, 0.006, pytest.approx(2 / 3)],
        ["pipeline_gpipe on 2 devices", 0, 1, "dense1", 1000, None, 0.003, pytest.approx(1 / 3)],
    ]
    assert table.rows[0].tags["strategy"] == "pipeline_gpipe"
    (words,) = of_kind(section, Paragraph)
    assert words.text.startswith("pipeline_gpipe on 2 devices: bubble: 55.0 % of the devices' time")


def test_many_runs_are_told_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_stages, "MAX_STAGED_RUNS", 1)
    made = [run(chain(0.006, 0.003), run_id="a"), run(chain(0.006, 0.003, 0.003), run_id="b")]
    section = pipeline_stages.section(evidence(tmp_path, made))
    assert len(one(section, Table).rows) == 2
    assert of_kind(section, Paragraph)[-1].text == "Shown are 1 of the 2 runs whose model was cut into stages."


def test_none_where_every_device_has_the_whole_model_or_nothing_went_well(tmp_path: Path) -> None:
    assert pipeline_stages.section(evidence(tmp_path / "a", [record()])) is None
    assert pipeline_stages.section(evidence(tmp_path / "b", [run(chain(0.006, 0.003), status="failed")])) is None
