"""`scalebench show DIR...`: the table of finished runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.__main__ import main
from scalebench.results import write_result
from tests.helpers import record


@pytest.fixture(autouse=True)
def runs() -> None:
    """Two sweeps: `a` with one and two devices, `b` with a run that failed."""
    for folder, result in {
        "a/0": record(gpus=1),
        "a/1": record(gpus=2),
        "b/0": record(gpus=4, status="failed", block_s=None),
    }.items():
        Path(folder).mkdir(parents=True)
        write_result(result, Path(folder))


def rows(out: str) -> list[list[str]]:
    """(strategy, gpus) of each row."""
    return [line.split()[:2] for line in out.splitlines() if line.split()[:1] == ["ddp"]]


@pytest.mark.parametrize(
    ("paths", "gpus"),
    [
        (["a"], "1 2"),
        (["b"], "4"),
        (["a", "b"], "1 2 4"),
        (["."], "1 2 4"),
        (["a/1/result.json"], "2"),
        (["a", "a/0"], "1 2"),
    ],
)
def test_all_runs_at_or_below_the_paths(capsys: pytest.CaptureFixture[str], paths: list[str], gpus: str) -> None:
    assert main(["show", *paths]) == 0
    out, err = capsys.readouterr()
    assert rows(out) == [["ddp", n] for n in gpus.split()] and err == ""
    assert f"results: {', '.join(paths)}" in out.splitlines()


def test_a_failed_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "b"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "failed" in line]
    assert "told to fail" in line


@pytest.mark.parametrize(
    ("words", "detailed"),
    [
        (["a"], []),
        (["a/1"], ["a/1"]),
        (["a", "--details"], ["a/0", "a/1"]),
        (["--details", "a", "b"], ["a/0", "a/1"]),
        (["b"], []),
    ],
)
def test_details_of_one_run_or_of_each(
    capsys: pytest.CaptureFixture[str], words: list[str], detailed: list[str]
) -> None:
    assert main(["show", *words]) == 0
    heads = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith(("a/", "b/"))]
    assert heads == detailed


@pytest.mark.parametrize("words", [[], ["--all"], ["--details"], ["a", "--all"]])
def test_without_a_folder(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["show", *words]) == 2
    assert capsys.readouterr().err == (
        "scalebench: show needs the folder of a run or a sweep, such as: python -m scalebench show multirun\n"
    )


def test_a_folder_without_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "scalebench: no result.json at or below nowhere; give the folder of a run or a sweep\n"
    )


def test_a_file_cut_short_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a/0/result.json").write_text('{"schema_version": 1, ')
    assert main(["show", "a"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("scalebench: a/0/result.json is no whole JSON file (") and err.count("\n") == 1


def test_a_file_of_another_schema_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a/0/result.json").write_text('{"schema_version": 2}')
    assert main(["show", "a"]) == 2
    assert capsys.readouterr().err == (
        "scalebench: a/0/result.json has schema version 2, this scalebench reads 1; update scalebench to read it\n"
    )
