"""What a report says of a sweep that is not whole."""

from __future__ import annotations

import platform
from pathlib import Path

from scalebench.report.document import Code, Paragraph
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import problems
from scalebench.sweep_record import SWEEP_FILE, PlannedRun, SweepRecord, beginning, write_sweep
from tests.sweeps import sweep


def made(folder: Path, runs: int = 6, **changes: object) -> SweepRecord:
    """Two strategies at 1 and 2 devices, and a bare one: five of `runs` rows."""
    sweep(folder, gpus=(1, 2))
    record = beginning(["--multirun", "strategy=a b", "resume=true"], "", platform.node(), None)
    record.runs = [PlannedRun(number, f"run {number}", "", 0) for number in range(runs)]
    for name, value in changes.items():
        setattr(record, name, value)
    write_sweep(record, folder)
    return record


def texts(folder: Path) -> list[str]:
    found = problems.unfinished_section(load_report_data([folder]))
    return [block.text for block in found.blocks if isinstance(block, Paragraph | Code)] if found else []


def test_a_whole_sweep_and_single_runs_have_no_such_section(tmp_path: Path) -> None:
    made(tmp_path / "s", runs=5)
    assert texts(tmp_path / "s") == []
    sweep(tmp_path / "t", gpus=(1,))
    assert texts(tmp_path / "t") == []
    made(tmp_path / "u", ended=True)
    assert texts(tmp_path / "u") == [], "a run that left no row at all is told as a failure when it happens"


def test_one_that_goes_on_says_so_and_needs_no_command(tmp_path: Path) -> None:
    made(tmp_path)
    assert texts(tmp_path) == [f"{tmp_path}: this sweep is still going on: 5 of 6 runs have ended. To come: run 5."]


def test_one_that_was_cut_short_tells_how_to_go_on(tmp_path: Path) -> None:
    made(tmp_path / "s", pid=2**22 + 1)
    first, command = texts(tmp_path)  # also from the folder above
    assert "this sweep was cut short: 5 of 6 runs have ended" in first
    assert command == "python -m scalebench --multirun 'strategy=a b' resume=true"


def test_one_of_another_machine_may_go_on(tmp_path: Path) -> None:
    made(tmp_path, hostname="elsewhere")
    assert "may still go on (elsewhere would know)" in texts(tmp_path)[0]


def test_what_was_left_out_is_named(tmp_path: Path) -> None:
    record = made(tmp_path, runs=40, ended=True, max_minutes=2.5, words=["sweep=demo", "sweep.max_minutes=2.5"])
    for run in record.runs[5:]:
        run.left_out = True
    write_sweep(record, tmp_path)
    first, command = texts(tmp_path)
    assert "sweep.max_minutes=2.5 left out 35 of 40 runs, the least informative ones: run 5, run 6" in first
    assert first.endswith("run 24 and 15 more.")
    assert command == "python -m scalebench sweep=demo resume=true"


def test_a_record_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / SWEEP_FILE).write_text("{")
    assert "is no record of a sweep" in texts(tmp_path)[0]
