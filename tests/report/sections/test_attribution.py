"""The section attribution, and the attributed runs behind it."""

import pytest

from scalebench.__main__ import main
from scalebench.report import report_data
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.sections import attribution
from tests.builders import sweeps
from tests.builders.attribution_runs import one_device_run, strong_scaling_runs, two_device_run, weak_scaling_runs
from tests.report.section_blocks import select_blocks


def make_section(folder):
    return list(attribution.loss_groups(report_data.load_report_data([folder])))


def split_blocks(blocks):
    texts = [block.text for block in select_blocks(blocks, Paragraph)]
    return select_blocks(blocks, Chart), select_blocks(blocks, Table), texts


def test_only_parts_that_exceed_their_noise_are_drawn(tmp_path):
    sweeps.sweep(tmp_path, repeats=3, noise=0.2)
    (chart,), (table,), _ = split_blocks(make_section(tmp_path))
    parts = [series for series in chart.series if series.name not in ("efficiency", "unexplained")]
    limits = [pair for series in parts for pair in series.limits if pair[0] is not None]
    assert not any(low <= 0 <= high for low, high in limits)
    assert "unexplained" in [series.name for series in chart.series] and len(table.columns) > 6 + len(parts)


def test_causes_are_listed_once_for_each_curve(tmp_path):
    sweeps.sweep(tmp_path, strategies=("bare_torch", "horovod_gloo"), gpus=(1, 2, 4, 8), noise=0.001)
    _, _, sentences = split_blocks(make_section(tmp_path))
    causes = [text for text in sentences if "costs more within training" in text]
    assert len(causes) == 1 and causes[0].startswith("horovod_gloo on 8 devices (also 4), communication: ")
    sweeps.sweep(tmp_path / "none", strategies=("bare_torch", "ddp_gloo"), gpus=(1,))
    assert split_blocks(make_section(tmp_path / "none"))[2] == []


def test_without_a_baseline_there_is_no_attribution(tmp_path, capsys):
    sweeps.write_results(tmp_path, [two_device_run(), sweeps.failed_run()])
    assert make_section(tmp_path) == []
    assert "lost efficiency" not in show_details(capsys, tmp_path)


def test_of_many_runs_the_attribution_is_that_of_few(tmp_path, monkeypatch):
    """Where a report shows the first repeats only, the causes are still those of all repeats."""
    sweeps.sweep(tmp_path, repeats=3)
    few, count = make_section(tmp_path), len(report_data.load_report_data([tmp_path]).pooled)
    monkeypatch.setattr(report_data, "MAX_DETAILED_RUNS", count)
    assert make_section(tmp_path) == few
    monkeypatch.setattr(attribution, "MIN_TITLE_SHARE", 0.9)
    (chart,), *_ = split_blocks(make_section(tmp_path))
    assert chart.title == "Where the lost efficiency went: most of it is within the noise", "of a small part none"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """One in which no cell is broken."""
    monkeypatch.setenv("COLUMNS", "200")


def show_details(capsys, folder):
    assert main(["show", str(folder), "--details"]) == 0
    return capsys.readouterr().out


def test_show_prints_where_the_lost_efficiency_went(tmp_path, capsys):
    sweeps.write_results(tmp_path, list(weak_scaling_runs(flags=["unequal_clocks"])))
    out = show_details(capsys, tmp_path)
    assert out.count("where the lost efficiency went") == 2  # of the run and of the strategy alone, not of bare
    assert "communication" in out and "9.1 % [" in out and "against the bare baseline" in out
    assert "imbalance: devices run at different clocks (flagged unequal_clocks)." in out


def test_a_local_batch_is_looked_up_among_all_rows(tmp_path, capsys):
    result, full, bare, self_baseline = strong_scaling_runs()
    sweeps.write_results(tmp_path, [result, full, bare, self_baseline, one_device_run("ddp", 0.01, 5)])
    assert "no good run" not in show_details(capsys, tmp_path)
    few = [strong_scaling_runs(run_id="alone")[0], one_device_run("bare_torch", 0.018, 20, scaling="strong")]
    sweeps.write_results(tmp_path / "less", few)
    out = show_details(capsys, tmp_path / "less")
    assert "batch + wrapper + contention" in out and "no good run of bare_torch on one device" in out
