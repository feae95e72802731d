"""sweep.json: read back, missing runs, and whether its program still runs."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from scalebench.core.errors import InputError
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.sweep_file import SWEEP_FILE, PlannedRun, new_sweep_record, read_sweep, write_sweep


def test_a_record_is_read_back(tmp_path: Path) -> None:
    record = new_sweep_record(["sweep=demo"], "2026-01-01T00:00:00+00:00", "node", 5.0)
    record.runs = [PlannedRun(0, "ddp gpus=1", "abc", 0), PlannedRun(1, "ddp gpus=2", "def", 0, left_out=True)]
    write_sweep(record, tmp_path)
    again = read_sweep(tmp_path)
    assert again == record and again.left_out == record.runs[1:]
    assert not (tmp_path / "other").exists() and read_sweep(tmp_path / "other") is None


def test_missing_are_runs_without_a_result_that_were_not_left_out(tmp_path: Path) -> None:
    record = new_sweep_record([], "", "node", None)
    record.runs = [PlannedRun(number, f"run {number}", "", 0, left_out=number == 3) for number in range(4)]
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / RESULT_FILE).touch()
    assert [run.number for run in record.missing(tmp_path)] == [0, 2]


def test_a_record_knows_whether_its_program_still_runs() -> None:
    record = new_sweep_record([], "", platform.node(), None)
    assert record.pid == os.getpid()
    assert record.is_alive(platform.node()) is True
    assert record.is_alive("elsewhere") is None
    record.pid_started_s -= 100.0
    assert record.is_alive(platform.node()) is False, "another process has its number now"
    record.pid_started_s += 100.0
    record.stopped = True
    assert record.is_alive(platform.node()) is False
    record.stopped, record.pid = False, 2**22 + 1
    assert record.is_alive(platform.node()) is False


@pytest.mark.parametrize("text", ["{", "[]", '{"words": 3}'])
def test_an_invalid_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / SWEEP_FILE).write_text(text)
    with pytest.raises(InputError, match=r"sweep\.json is no record of a sweep: "):
        read_sweep(tmp_path)
