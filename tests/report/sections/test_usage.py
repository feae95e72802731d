"""The sections usage and clocks."""

import dataclasses
import os

import pandas as pd
import pytest

from scalebench.core.result import MonitorRecord
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import usage
from tests.builders import sweeps
from tests.builders.sweeps import BEGIN_S, DIP_S, sweep, write_monitored_run
from tests.report.section_blocks import build_section, get_block, select_blocks


def test_without_a_monitor_the_memory_of_ranks_is_left(tmp_path):
    runs = [sweeps.run("ddp_gloo", n, monitor=MonitorRecord()) for n in (1, 2)]
    section = build_section(usage, tmp_path / "1", runs)
    assert [block.columns for block in section.blocks] == [["strategy", "gpus", "memory of a rank"]]
    for rank in (rank for result in runs for rank in result.ranks):
        rank.rss_peak_bytes = None
    assert build_section(usage, tmp_path / "2", runs) is build_section(usage, tmp_path / "3", [sweeps.failed_run()])


@pytest.mark.parametrize(
    ("sent", "nodes", "drawn", "listed"),
    [((0.0, 0.0), 2, False, True), ((0.0, 5.0), 2, True, True), ((0.0, 5.0), 1, False, False)],
)
def test_traffic_is_shown_between_nodes_and_bars_that_are_all_0_are_no_chart(sent, nodes, drawn, listed, tmp_path):
    """On one node the interfaces carry other programs' traffic."""
    monitors = [MonitorRecord(gpu_util_mean=0.5, net_sent_bytes_per_s=sent_per_s) for sent_per_s in sent]
    runs = [sweeps.run("ddp_gloo", gpus, monitor=monitor) for gpus, monitor in zip((1, 2), monitors, strict=True)]
    runs[1].scale.nodes = nodes
    section = build_section(usage, tmp_path, runs)
    chart_ids = [chart.id for chart in select_blocks(section, Chart)]
    assert any("net-sent" in name for name in chart_ids) == drawn and "gpu-util" in chart_ids[0]
    assert ("network, sent" in get_block(section, Table).columns) == listed


def make_clocks(folder):
    """Return the section's charts, of which no two have an id, and its texts."""
    section = usage.clocks_section(load_report_data([folder]))
    charts = select_blocks(section, Chart)
    assert len({chart.id for chart in charts}) == len(charts)
    return charts, [block.text for block in select_blocks(section, Paragraph)]


def test_the_largest_of_each_curve_and_those_with_flags(tmp_path, monkeypatch):
    for number, (gpus, flags) in enumerate([(1, []), (2, ["busy_machine"]), (4, ["swapping"]), (3, ["throttled"])]):
        write_monitored_run(tmp_path / str(number), gpus, flags=flags)
    (first, *_), texts = make_clocks(tmp_path)
    names = ["ddp_gloo on 3 devices: throttled", "ddp_gloo on 2 devices: busy machine", "ddp_gloo on 4 devices"]
    assert texts == names and len(first.series) == 3
    assert first.series[0].tags == {"model": "materials_cnn", "strategy": "ddp_gloo", "hardware": "cpu"}
    monkeypatch.setattr(usage, "MAX_MONITORED_RUNS", 2)
    left_out = "1 more runs with a flag, or of the most devices of a curve, are not drawn here."
    assert make_clocks(tmp_path)[1] == [*names[:2], left_out]


def test_runs_without_a_series_have_a_reason(tmp_path):
    sweep(tmp_path, ["horovod_gloo", "lightning_ddp_gloo"], gpus=(2,))
    write_monitored_run(tmp_path / "broken", 1)
    (tmp_path / "broken" / "monitor.parquet").write_bytes(b"half")
    first, second = make_clocks(tmp_path)[1]
    assert first == "No series of horovod_gloo on 2 devices; lightning_ddp_gloo on 2 devices: it was not monitored."
    assert second.startswith("No series of ddp_gloo on 1 device: monitor.parquet cannot be read: ")


def make_charts(result, folder):
    drawn = usage.make_monitor_charts(result, folder, "clocks-0", "a run", {"strategy": "ddp_gloo"})
    return {chart.id.removeprefix("clocks-0-"): chart for chart in drawn}


def test_series_over_the_seconds_of_the_measured_phase(tmp_path, monkeypatch):
    result = write_monitored_run(tmp_path / "run")
    charts = make_charts(result, tmp_path / "run")
    assert list(charts) == ["sm-clock", "utilisation", "cores", "memory"]  # what was not sampled has no chart
    clock = charts["sm-clock"]
    assert [series.name for series in clock.series] == ["GPU 0", "GPU 1"]
    assert clock.series[0].tags == {"strategy": "ddp_gloo"} and "a run" in clock.title
    for series in clock.series:
        assert -5 <= series.x[0] < -4.9 and 9.9 < series.x[-1] <= 10
        assert len(series.x) == len(series.y) <= usage.MAX_MONITOR_POINTS
    assert set(charts["utilisation"].series[0].y) == {0.5}
    every, ours = charts["cores"].series  # counters are shown as rates
    assert (every.name, ours.name) == ("all programs", "this run") and "4 cores" in charts["cores"].caption
    assert every.y == pytest.approx([3.0] * len(every.y)) and ours.y == pytest.approx([2.0] * len(ours.y))
    assert [series.y[0] for series in charts["memory"].series] == [2e9, 2_000_000_001]
    monkeypatch.setattr(usage, "MAX_MONITOR_POINTS", 20)
    dipped = make_charts(result, tmp_path / "run")["sm-clock"].series[1]
    assert len(dipped.x) <= 20
    assert dict(zip(dipped.y, dipped.x, strict=True))[210.0] == pytest.approx(DIP_S), "of one sample"
    rates = usage._compute_rates([(0.0, 5.0), (1.0, 6.0), (1.0, 7.0), (2.0, 1.0), (3.0, 2.5)])
    assert rates == [(1.0, 1.0), (3.0, 1.5)], "a counter that was set back"


def test_of_several_nodes_the_first_is_drawn_and_of_hot_gpus_all(tmp_path):
    """Another node's GPUs are not those of the same number in this series."""
    result = write_monitored_run(tmp_path / "run", flags=["hot_at_start"])
    assert make_charts(result, tmp_path / "run")["sm-clock"].series[0].x[0] < -7.9
    for node, device in enumerate(result.monitor.devices):
        device.node = node
    result.scale.nodes = 2
    clock = make_charts(result, tmp_path / "run")["sm-clock"]
    assert [series.name for series in clock.series] == ["GPU 0"]
    assert clock.caption.endswith(" Of node 0; there are 2 nodes.")
    memory = make_charts(write_monitored_run(tmp_path / "many", 20), tmp_path / "many")["memory"]
    assert [series.name for series in memory.series] == [f"rank {number}" for number in range(16)]
    assert "16 of 20 ranks" in memory.caption


def replace_series(path, content):
    """Put something else in the place of a series."""
    path.rename(path.parents[1] / "elsewhere.parquet")
    if content == "folder":
        path.mkdir()
    elif content == "link":
        os.symlink(path.parents[1] / "elsewhere.parquet", path)
    elif content == "table":
        pd.DataFrame({"time_s": ["now"], "gpu": [1]}).to_parquet(path)
    elif content is not None:
        path.write_bytes(content)


LATER = {"measure": BEGIN_S + 100, "probes": BEGIN_S + 101}


@pytest.mark.parametrize(("changes", "marks", "reason"), [
    *(({"content": content}, None, r"monitor\.parquet")
      for content in (b"", b"PAR1half", b"PAR1" * 1000, None, "folder", "link", "table")),
    ({"file": None}, None, "^it was not monitored$"),
    ({"file": None, "reason": "no room"}, None, "^no room$"),
    ({"file": "../kept.parquet"}, None, r"^there is no \.\./kept\.parquet in its folder$"),
    ({"limit": 100}, None, r"^monitor\.parquet is too large to be drawn$"),
    ({}, {}, "its measured phase has no"), ({}, {"measure": BEGIN_S}, "its measured phase has no"),
    ({}, LATER, "nothing of the measured phase"),
])  # fmt: skip
def test_a_series_that_cannot_be_drawn_has_its_reason(tmp_path, monkeypatch, changes, marks, reason):
    result = write_monitored_run(tmp_path / "run")
    if "content" in changes:
        replace_series(tmp_path / "run" / "monitor.parquet", changes["content"])
    elif "limit" in changes:
        monkeypatch.setattr(usage, "MAX_SERIES_BYTES", changes["limit"])
    else:
        result.monitor = dataclasses.replace(result.monitor, **changes)
    if marks is not None:
        result.ranks[0].marks_s = marks
    with pytest.raises(usage.NoSeries, match=reason):
        make_charts(result, tmp_path / "run")
