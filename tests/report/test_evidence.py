"""What a report is about: rows, what could not be read, and records that are read again one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.frame import load
from scalebench.pooling import pooled
from scalebench.report import report_data
from scalebench.report.report_data import load_report_data
from scalebench.results import RESULT_FILE
from scalebench.spec import InputError
from tests import sweeps


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    sweeps.sweep(tmp_path / "sweep", ("bare_torch", "ddp_gloo"), (1, 2), repeats=2)
    return tmp_path / "sweep"


def test_rows_are_those_of_load_and_pooled(sweep: Path) -> None:
    found = load_report_data([sweep])
    assert found.frame.equals(load(sweep)) and found.pooled.equals(pooled(sweep)) and len(found.pooled) == 3
    assert (found.paths, found.unreadable, found.baseline_name, found.published) == ([sweep], [], None, None)
    assert found.min_efficiency == 0.8 and load_report_data([sweep], 0.5).min_efficiency == 0.5


def test_a_file_that_cannot_be_read_is_told_of(sweep: Path) -> None:
    bad = sweep / "2" / RESULT_FILE
    bad.write_text("{")
    found = load_report_data([sweep])
    assert [path for path, _ in found.unreadable] == [bad] and "no whole JSON file" in found.unreadable[0][1]
    assert len(found.frame) == 5 and sorted(found.detailed_run_ids) == sorted(found.frame["run_id"])


def test_without_a_result_there_is_no_evidence(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"^no result\.json at or below "):
        load_report_data([tmp_path / "empty"])
    for number in range(6):
        (sweep / str(number) / RESULT_FILE).write_text("{")
    with pytest.raises(InputError, match=r"^not one of 6 files of results can be read"):
        load_report_data([sweep])


def test_a_baseline_is_named_in_words(sweep: Path) -> None:
    found = load_report_data([sweep], baseline="bare_torch-1-0")
    assert found.baseline_name == "bare_torch gpus=1 on cpu"
    assert found.pooled["speedup_given"].equals(found.pooled["speedup_bare"])
    with pytest.raises(InputError, match="no run 'nobody'"):
        load_report_data([sweep], baseline="nobody")


def test_published_rows_come_on_request(sweep: Path) -> None:
    found = load_report_data([sweep], references=["thesis"])
    assert found.published is not None and set(found.published["study"]) == {"thesis"}
    assert found.frame.equals(load_report_data([sweep]).frame), "they are no part of what was measured"
    with pytest.raises(InputError, match="thesis"):
        load_report_data([sweep], references=["theses"])


def test_records_are_read_again(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_report_data([sweep])
    assert found.folder("ddp_gloo-2-0") == sweep / "2"
    assert found.result("ddp_gloo-2-0").ranks == sweeps.run("ddp_gloo", 2, minute=2).ranks
    with pytest.raises(KeyError):
        found.folder("nobody")
    monkeypatch.setattr(report_data, "MAX_DETAILED_RUNS", 4)
    assert found.detailed_run_ids == [f"{name}-0" for name in ("bare_torch-1", "ddp_gloo-1", "ddp_gloo-2")]
