"""Where the time of a step goes, as the frame says."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.curves import curves
from scalebench.report import step_breakdown
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.report_data import load_report_data
from tests.report.probed_run import probed_run, probes
from tests.sweeps import run, sweep, write


def test_figures_are_the_frame_s(tmp_path: Path) -> None:
    sweep(tmp_path, ["bare_torch", "ddp_gloo"], gpus=(1, 2, 4))
    evidence = load_report_data([tmp_path])
    blocks = step_breakdown.make_blocks(evidence, curves(evidence.pooled))
    (table,) = (block for block in blocks if isinstance(block, Table))
    charts = [block for block in blocks if isinstance(block, Chart)]
    assert [chart.kind for chart in charts] == ["stacked", "stacked"] and charts[1].series[0].x == ["1", "2", "4"]
    rows = {(row["strategy"], row["gpus"]): row for row in evidence.frame.to_dict("records")}
    stacked = {series.name: series for series in charts[1].series}
    assert set(stacked) == {"data loading", "forward", "backward", "optimizer", "exposed sync", "not in any of these"}
    for number, gpus in enumerate((1, 2, 4)):
        row = rows["ddp_gloo", gpus]
        for name, part in step_breakdown.STEP_PARTS.items():
            figure = stacked[part.name].y[number]
            assert figure == (None if str(row[name]) == "<NA>" else row[name])
        total = sum(series.y[number] or 0 for series in charts[1].series)
        assert total == pytest.approx(row["step_s"])
    last = table.rows[-1]
    assert [cell.value for cell in last.cells[:4]] == ["ddp_gloo", 4, row["step_s"], row["data_s"]]
    assert last.tags["strategy"] == "ddp_gloo" and "[" in last.cells[5].text


def test_the_rest_is_the_terminal_s(tmp_path: Path) -> None:
    write(tmp_path, [probed_run(probes(), probes())])
    evidence = load_report_data([tmp_path])
    (curve,) = curves(evidence.pooled)
    result = evidence.result(curve.rows[0]["run_id"])
    known, _ = step_breakdown.compute_rest(result, step_breakdown.step_interval(result))
    assert known is not None
    assert step_breakdown.compute_rest_s(curve.rows[0]) == pytest.approx(known.value)


def test_what_was_not_measured_has_its_reason(tmp_path: Path) -> None:
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    evidence = load_report_data([tmp_path])
    table, _ = step_breakdown.make_blocks(evidence, curves(evidence.pooled))
    assert isinstance(table, Table)
    said = table.rows[0].cells[-1].text
    assert "exposed sync: one device has nobody to exchange with" in said
    assert f"forward, backward, optimizer: {step_breakdown.TOO_FEW_BLOCKS}" in said
    assert table.rows[0].cells[7].text == ""


def test_without_probes_there_is_a_sentence(tmp_path: Path) -> None:
    made = run("ddp_gloo", 2)
    for rank in made.ranks:
        rank.probes = None
    write(tmp_path, [made])
    evidence = load_report_data([tmp_path])
    (said,) = step_breakdown.make_blocks(evidence, curves(evidence.pooled))
    assert isinstance(said, Paragraph) and "measure.probes" in said.text
