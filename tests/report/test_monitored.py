"""Charts of a monitor's series."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from scalebench.report.document import Chart
from scalebench.report.sections import usage
from scalebench.results import Result
from tests.report.monitored_run import BEGIN_S, DIP_S
from tests.report.monitored_run import monitored as made


def charts(result: Result, folder: Path) -> dict[str, Chart]:
    found = usage.make_monitor_charts(result, folder, "clocks-0", "a run", {"strategy": "ddp_gloo"})
    return {chart.id.removeprefix("clocks-0-"): chart for chart in found}


def test_each_gpu_over_the_seconds_of_the_measured_phase(tmp_path: Path) -> None:
    result = made(tmp_path / "run")
    found = charts(result, tmp_path / "run")
    assert list(found) == ["sm-clock", "utilisation", "cores", "memory"]  # what was not sampled has no chart
    clock = found["sm-clock"]
    assert [series.name for series in clock.series] == ["GPU 0", "GPU 1"]
    assert clock.series[0].tags == {"strategy": "ddp_gloo"} and "a run" in clock.title
    for series in clock.series:
        assert -5 <= series.x[0] < -4.9 and 9.9 < series.x[-1] <= 10
        assert len(series.x) == len(series.y) <= usage.MAX_MONITOR_POINTS
    assert set(found["utilisation"].series[0].y) == {0.5}


def test_of_several_nodes_the_first_is_drawn(tmp_path: Path) -> None:
    """Another node's GPUs are not those of the same number in this series."""
    result = made(tmp_path / "run")
    for node, device in enumerate(result.monitor.devices):
        device.node = node
    result.scale.nodes = 2
    clock = charts(result, tmp_path / "run")["sm-clock"]
    assert [series.name for series in clock.series] == ["GPU 0"]
    assert clock.caption.endswith(" Of node 0; there are 2 nodes.")


def test_a_dip_of_one_sample_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_MONITOR_POINTS", 20)
    dipped = charts(made(tmp_path / "run"), tmp_path / "run")["sm-clock"].series[1]
    assert len(dipped.x) <= 20
    assert dict(zip(dipped.y, dipped.x, strict=True))[210.0] == pytest.approx(DIP_S)


def test_counters_are_shown_as_rates(tmp_path: Path) -> None:
    found = charts(made(tmp_path / "run"), tmp_path / "run")
    every, ours = found["cores"].series
    assert (every.name, ours.name) == ("all programs", "this run")
    assert every.y == pytest.approx([3.0] * len(every.y)) and ours.y == pytest.approx([2.0] * len(ours.y))
    assert "4 cores" in found["cores"].caption
    assert [series.y[0] for series in found["memory"].series] == [2.0, 2.000000001]


def test_of_gpus_that_were_hot_before_all_is_shown(tmp_path: Path) -> None:
    result = made(tmp_path / "run", flags=["hot_at_start"])
    assert charts(result, tmp_path / "run")["sm-clock"].series[0].x[0] < -7.9


def test_many_ranks_are_too_many(tmp_path: Path) -> None:
    memory = charts(made(tmp_path / "run", 20), tmp_path / "run")["memory"]
    assert [series.name for series in memory.series] == [f"rank {number}" for number in range(16)]
    assert "16 of 20 ranks" in memory.caption


def test_a_series_that_was_set_back_has_no_negative_rate() -> None:
    assert usage._compute_rates([(0.0, 5.0), (1.0, 6.0), (1.0, 7.0), (2.0, 1.0), (3.0, 2.5)]) == [
        (1.0, 1.0),
        (3.0, 1.5),
    ]


@pytest.mark.parametrize("content", [b"", b"PAR1half", b"PAR1" * 1000, "none", "folder", "elsewhere", "other"])
def test_what_cannot_be_read_is_said(tmp_path: Path, content: bytes | str) -> None:
    result = made(tmp_path / "run")
    path = tmp_path / "run" / "monitor.parquet"
    path.rename(tmp_path / "kept.parquet")
    if content == "folder":
        path.mkdir()
    elif content == "elsewhere":
        os.symlink(tmp_path / "kept.parquet", path)
    elif content == "other":
        import pandas as pd

        pd.DataFrame({"time_s": ["now"], "gpu": [1]}).to_parquet(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(usage.NoSeries, match=r"monitor\.parquet"):
        charts(result, tmp_path / "run")


def test_reasons_of_the_record_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = made(tmp_path / "run")

    def why(**changes: object) -> str:
        changed = dataclasses.replace(result, monitor=dataclasses.replace(result.monitor, **changes))  # type: ignore[arg-type]
        with pytest.raises(usage.NoSeries) as error:
            charts(changed, tmp_path / "run")
        return str(error.value)

    assert why(file=None) == "it was not monitored"
    assert why(file=None, reason="no room") == "no room"
    assert why(file="../kept.parquet") == "there is no ../kept.parquet in its folder"
    monkeypatch.setattr(usage, "MAX_SERIES_BYTES", 100)
    assert why() == "monitor.parquet is too large to be drawn"


def test_a_run_without_a_measured_phase_has_none(tmp_path: Path) -> None:
    result = made(tmp_path / "run")
    for marks in ({}, {"measure": BEGIN_S}):
        result.ranks[0].marks_s = marks
        with pytest.raises(usage.NoSeries, match="measured phase"):
            charts(result, tmp_path / "run")
    result.ranks[0].marks_s = {"measure": BEGIN_S + 100, "probes": BEGIN_S + 101}
    with pytest.raises(usage.NoSeries, match="nothing of the measured phase"):
        charts(result, tmp_path / "run")
