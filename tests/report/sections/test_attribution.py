"""The section attribution, and the attributed runs behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

import scalebench
from scalebench.__main__ import main
from scalebench.core.stats.estimates import Estimate
from scalebench.report import report_data
from scalebench.report.document import Chart, Paragraph, Section, Table
from scalebench.report.sections import attribution
from scalebench.report.sections.attribution import MAX_BARS, section
from tests.builders import sweeps
from tests.builders.attribution_runs import one_device_run, strong_scaling_runs, two_device_run, weak_scaling_runs


def told(folder: Path) -> Section:
    found = section(report_data.load_report_data([folder]))
    assert found is not None
    return found


def blocks(found: Section) -> tuple[list[Chart], list[Table], list[str]]:
    charts = [block for block in found.blocks if isinstance(block, Chart)]
    tables = [block for block in found.blocks if isinstance(block, Table)]
    return charts, tables, [block.text for block in found.blocks if isinstance(block, Paragraph)]


def test_bars_and_cells_are_the_figures_of_the_frame(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, repeats=3)
    (chart,), (table,), _ = blocks(told(tmp_path))
    known = scalebench.attribution(tmp_path).set_index(["strategy", "gpus", "part"]).sort_index()
    assert chart.kind == "stacked" and chart.y.percent
    for one in chart.series:  # so that a reader's filter takes single bars
        assert all(str(x).startswith(f"{tags['strategy']} x") for x, tags in zip(one.x, one.point_tags, strict=True))
    for one in chart.series:
        for name, value in zip(one.x, one.y, strict=True):
            strategy, gpus = str(name).split(" x ")
            if one.name == "kept":
                assert value == 1 - known.loc[(strategy, int(gpus)), "lost"].iloc[0]
            elif value is not None:
                assert value == known.loc[(strategy, int(gpus), one.name), "share"]
    for row in table.rows:
        cells = dict(zip(table.columns, row.cells, strict=True))
        mine = known.loc[(cells["strategy"].value, cells["devices"].value)]
        assert cells["lost"].value == mine["lost"].iloc[0] and cells["repeats"].text == "3"
        for part in set(table.columns) & set(mine.index):
            share = mine.loc[part, "share"]
            assert cells[part].value == (None if str(share) == "<NA>" else share)


def test_a_bar_adds_up_to_all(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path)
    (chart,), _, _ = blocks(told(tmp_path))
    for bar in range(len(chart.series[0].x)):
        assert sum(one.y[bar] or 0.0 for one in chart.series) == pytest.approx(1.0, abs=1e-12)


def test_weak_and_strong_scaling_have_charts_of_their_own(tmp_path: Path) -> None:
    sweeps.write(tmp_path, [*weak_scaling_runs(), *strong_scaling_runs()])
    charts, tables, _ = blocks(told(tmp_path))
    assert [("strong" in one.title, "weak" in one.title) for one in charts] == [(False, True), (True, False)]
    assert len({one.id for one in (*charts, *tables)}) == 4
    assert [one.name for one in charts[1].series][:2] == ["kept", "batch"]


def test_merged_parts_are_named_and_told_why(tmp_path: Path) -> None:
    result, full, bare, _ = strong_scaling_runs()
    sweeps.write(tmp_path, [result, full, bare])
    (chart,), (table,), words = blocks(told(tmp_path))
    assert "overhead + contention" in [one.name for one in chart.series]
    cells = dict(zip(table.columns, table.rows[0].cells, strict=True))
    assert cells["contention"].text == "in overhead" and cells["contention"].value is None
    assert any("overhead of ddp x 2: no good run of ddp on one device" in text for text in words)


def test_causes_are_told_once_a_curve(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, strategies=("bare_torch", "horovod_gloo"), gpus=(1, 2, 4, 8), noise=0.001)
    _, _, words = blocks(told(tmp_path))
    found = [text for text in words if "costs more within training" in text]
    assert found and found[0].startswith("horovod_gloo on 8 devices (also 4), transfer: ")
    assert len(found) == 1


def test_a_sweep_without_causes_says_nothing_of_them(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, strategies=("bare_torch", "ddp_gloo"), gpus=(1,))
    assert blocks(told(tmp_path))[2] == []


def test_nothing_to_tell(tmp_path: Path) -> None:
    sweeps.write(tmp_path, [two_device_run(), sweeps.failed()])
    assert section(report_data.load_report_data([tmp_path])) is None


def test_many_runs_are_told_by_the_first_launch_and_the_most_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_data, "MAX_DETAILED_RUNS", 6)
    sweeps.sweep(tmp_path, repeats=2)
    found = told(tmp_path)
    _, (table,), words = blocks(found)
    assert "first repeat of each configuration" in words[0]
    repeats = {cell.text for row in table.rows for name, cell in zip(table.columns, row.cells, strict=True)
                if name == "repeats"}  # fmt: skip
    assert repeats == {"1"}


def test_more_bars_than_a_chart_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalebench.report.sections.attribution.MAX_BARS", 3)
    sweeps.sweep(tmp_path)
    (chart,), (table,), words = blocks(told(tmp_path))
    assert list(chart.series[0].x) == ["ddp_gloo x 4", "horovod_gloo x 4"] and len(table.rows) == 6
    assert any("more than a chart can show" in text for text in words) and MAX_BARS >= 24


def details(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    assert main(["show", str(folder), "--details"]) == 0
    return capsys.readouterr().out


def test_show_tells_where_the_lost_efficiency_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write(tmp_path, list(weak_scaling_runs(flags=["unequal_clocks"])))
    out = details(capsys, tmp_path)
    assert out.count("where the lost efficiency went") == 2  # of the run and of the strategy alone, not of bare
    assert "transfer" in out and "9.1 % [" in out and "against the bare baseline" in out
    assert "imbalance: devices run at different clocks (flagged unequal_clocks)." in out


def test_a_local_batch_is_looked_up_among_all_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, full, bare, own = strong_scaling_runs()
    sweeps.write(tmp_path, [result, full, bare, own, one_device_run("ddp", 0.01, 5)])
    assert "no good run" not in details(capsys, tmp_path)
    sweeps.write(
        tmp_path / "less",
        [strong_scaling_runs(run_id="alone")[0], one_device_run("bare_torch", 0.018, 20, scaling="strong")],
    )
    out = details(capsys, tmp_path / "less")
    assert "batch + overhead + contention" in out and "no good run of bare_torch on one device" in out


def test_a_run_without_a_baseline_has_no_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write(tmp_path, [weak_scaling_runs()[0], sweeps.failed()])
    assert "lost efficiency" not in details(capsys, tmp_path)


def test_figures_with_and_without_limits() -> None:
    assert attribution.format_share(Estimate(0.1234, 0.1, 0.15)) == "12.3 % [10.0, 15.0]"
    assert attribution.format_share(Estimate(-0.0001)) == "0.0 %"
