"""Which runs are told one by one, and their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.report import report_data
from scalebench.report.report_data import load_report_data
from tests.sweeps import run, strong, sweep, write


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    sweep(tmp_path, ["bare_torch", "ddp_gloo"], gpus=(1, 2), repeats=2)
    again = run("ddp_gloo", 2, repeat=1, run_id="again")
    write(tmp_path, [again, run("ddp_gloo", 4, status="failed", run_id="f", reason="r")])
    rows = report_data.list_detailed_runs(load_report_data([tmp_path]))
    names = report_data.name_runs(rows)
    assert len(names) == len(rows) == 8 and len(set(names.values())) == 8
    assert names["ddp_gloo-2-0"] == "ddp_gloo on 2 devices, repeat 0"
    assert names["bare_torch-1-1"] == "bare_torch on 1 device, repeat 1"
    assert names["again"] == "ddp_gloo on 2 devices, repeat 1 #2"
    assert names["f"] == "ddp_gloo on 4 devices"


def test_what_must_never_be_mixed_is_always_told(tmp_path: Path) -> None:
    write(tmp_path, [run("ddp_gloo", 2), run("ddp_gloo", 4, run_id="s", **strong(40, 4))])
    names = report_data.name_runs(report_data.list_detailed_runs(load_report_data([tmp_path])))
    assert names == {
        "ddp_gloo-2-0": "ddp_gloo on 2 devices, scaling weak",
        "s": "ddp_gloo on 4 devices, scaling strong",
    }


def test_a_copied_run_is_told_once(tmp_path: Path) -> None:
    write(tmp_path, [run("ddp_gloo", 2), run("ddp_gloo", 2)])
    assert len(report_data.list_detailed_runs(load_report_data([tmp_path]))) == 1


def test_of_many_runs_some_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_data, "MAX_DETAILED_RUNS", 3)
    monkeypatch.setattr(report_data, "MAX_DETAILED_RUNS", 3)
    sweep(tmp_path, ["bare_torch", "ddp_gloo"], gpus=(1, 2, 4), repeats=2)
    found = load_report_data([tmp_path])
    rows = report_data.list_detailed_runs(found)
    assert [row["run_id"] for row in rows] == found.detailed_run_ids and len(rows) == 3
    assert "3 configurations, out of 8 runs" in report_data.describe_left_out_runs(found)
    assert report_data.describe_left_out_runs(load_report_data([tmp_path / "0"])) == ""


def test_first_launches_come_before_repeats() -> None:
    rows = [{"repeat": repeat, "run_id": f"{repeat}{name}"} for repeat in (1, 0) for name in "ab"]
    assert [row["run_id"] for row in report_data.select_first_repeats(rows, 3)] == ["1a", "0a", "0b"]
    assert [row["run_id"] for row in report_data.select_first_repeats([{"repeat": None, "run_id": "x"}], 3)] == ["x"]
