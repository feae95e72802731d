"""`scalebench show DIR...`: the table of finished runs."""

import json
import os
import platform
from datetime import datetime
from pathlib import Path

import pytest

from scalebench.__main__ import main
from scalebench.core.folder_lock import claim_run_folder
from scalebench.core.result import read_result, write_result
from scalebench.core.run_folder import LOCK_FILE
from tests.builders.runs import record, simulated_spec


@pytest.fixture(autouse=True)
def runs():
    """Two sweeps: `a` with one and two devices, `b` with a run that failed."""
    for folder, result in {
        "a/0": record(gpus=1),
        "a/1": record(gpus=2),
        "b/0": record(gpus=4, status="failed", block_s=None),
    }.items():
        Path(folder).mkdir(parents=True)
        write_result(result, Path(folder))


def rows(out):
    """(strategy, gpus) of each row."""
    return [line.split()[1:3] for line in out.splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize(("paths", "gpus"), [
    (["a"], "1 2"),
    (["b"], "4"),
    (["a", "b"], "1 2 4"),
    (["."], "1 2 4"),
    (["a/1/result.json"], "2"),
    (["a", "a/0"], "1 2"),
])  # fmt: skip
def test_all_runs_at_or_below_the_paths(capsys, paths, gpus):
    assert main(["show", *paths]) == 0
    out, err = capsys.readouterr()
    assert rows(out) == [["ddp", n] for n in gpus.split()] and err == ""
    assert ("failed as configured" in out) == ("4" in gpus), "the reason of the failed run"
    assert f"results: {', '.join(paths)}" in out.splitlines()


@pytest.mark.parametrize(("words", "detailed"), [
    (["a"], []),
    (["a/1"], ["a/1"]),
    (["a", "--details"], ["a/0", "a/1"]),
    (["--details", "a", "b"], ["a/0", "a/1"]),
    (["b"], []),
])  # fmt: skip
def test_details_of_one_run_or_of_each(capsys, words, detailed):
    assert main(["show", *words]) == 0
    heads = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith(("a/", "b/"))]
    assert heads == detailed


def test_without_a_folder_it_is_the_newest_sweep(capsys):
    for folder, gpus in (("multirun/first/0", 1), ("multirun/single/later/", 8)):
        Path(folder).mkdir(parents=True)
        write_result(record(gpus=gpus), Path(folder))
    assert main(["show"]) == 0
    out, err = capsys.readouterr()
    assert rows(out) == [["ddp", "8"]] and err == "scalebench: multirun/single/later is the newest run\n"
    Path("multirun/first/sweep.json").touch()
    assert main(["show", "--details"]) == 0
    out, err = capsys.readouterr()
    assert rows(out) == [["ddp", "1"]] and err == "scalebench: multirun/first is the newest sweep\n"


def test_a_baseline_has_a_column_that_names_it(capsys):
    for baseline in ("ddp-2-0", "a/1"):
        assert main(["show", "a", "b", "--baseline", baseline]) == 0
        out, err = capsys.readouterr()
        assert "speedup and efficiency over ddp gpus=2 on cpu" in out and err == ""
        one, two, _ = (line.split() for line in out.splitlines() if line.split()[1:2] == ["ddp"])
        assert "0.50" in one and "1.00" in two


def test_one_run_by_its_number_in_the_table(capsys):
    """Of several repeats the first, with the folders of the others."""
    for repeat in (1, 2):
        Path(f"a/again{repeat}").mkdir()
        again = record(gpus=2, repeat=repeat, started_at=f"2026-01-0{repeat + 1}T00:00:00+00:00")
        write_result(again, Path(f"a/again{repeat}"))
    assert main(["show", "a", "b", "--run", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a/1: ddp gpus=2" and lines[-1] == "2 more repeats: a/again1, a/again2"
    assert main(["show", "a", "b", "--run", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == ["✗ ddp 4 devices  failed: failed as configured"]


def test_a_run_that_left_no_result_is_named_and_one_whose_program_was_killed_is_a_row(capsys):
    for name in ("a/7", "a/8"):
        Path(name).mkdir()
        Path(name, "spec.json").write_text("{}")
    with claim_run_folder(simulated_spec(), Path("a/9")):
        left = Path("a/9", LOCK_FILE).read_text()
        assert main(["show", "a"]) == 0
    left = json.dumps({**json.loads(left), "pid_started_s": 0.0})  # of a process that has ended
    line = "scalebench: no result in a/7 and 2 more: still running, or ended before it could write one\n"
    assert capsys.readouterr().err == line
    Path("a/9", LOCK_FILE).write_text(left.replace(platform.node(), "login2"))
    assert main(["show", "a"]) == 0 and capsys.readouterr().err == line
    Path("a/9", LOCK_FILE).write_text(left)
    assert main(["show", "a"]) == 0
    out, err = capsys.readouterr()
    assert "and 1 more" in err and "failed" in out
    result = read_result(Path("a/9/result.json"))
    assert (result.status, result.reason) == ("failed", "the program that ran it was killed")
    assert datetime.fromisoformat(result.started_at) == datetime.fromisoformat(json.loads(left)["since"])
    assert sorted(os.listdir("a/9")) == ["result.json", "spec.json"]


def test_of_many_files_that_cannot_be_read_some_are_named(capsys):
    for number in range(13):
        Path(f"c/{number}").mkdir(parents=True)
        Path(f"c/{number}/result.json").touch()
    assert main(["show", "a", "c"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("scalebench: left out: c/0/result.json is not a complete JSON file (")
    assert len(lines) == 11 and lines[-1] == "scalebench: left out: 3 more that cannot be read"
