"""`scalebench report DIR...`: the files it writes, and one line for each mistake."""

from pathlib import Path

import pandas as pd
import pytest

import scalebench
from scalebench.__main__ import main
from tests.builders import sweeps


@pytest.fixture(autouse=True)
def runs():
    """A sweep of three runs in `a`, one that failed in `b`."""
    sweeps.sweep(Path("a"), strategies=("bare_torch", "ddp_gloo"), gpus=(1, 2))
    sweeps.write_results(Path("b"), [sweeps.failed_run()])


@pytest.fixture(autouse=True)
def empty_reports(monkeypatch):
    """What a report tells is not of the verb."""
    monkeypatch.setattr("scalebench.report.sections.SECTIONS", [])
    monkeypatch.setattr("scalebench.report.figures.write", lambda evidence, folder: folder.mkdir())


def lines(capsys, status, *words):
    """Those of the output of a report that went well, or of the errors of one that did not."""
    assert main(["report", *words]) == status
    out, err = capsys.readouterr()
    assert (err if status == 0 else out) == ""
    return (out if status == 0 else err).splitlines()


@pytest.mark.parametrize(("words", "page"), [
    (["a"], "a/report.html"),
    (["a", "b"], "a/report.html"),
    (["b"], "b/report.html"),
    (["a/0"], "a/0/report.html"),
    (["a/0/result.json"], "a/0/report.html"),
    (["a", "--out", "c/new.html", "b"], "c/new.html"),
    (["a", "--efficiency=0.9", "--out=x.html"], "x.html"),
    (["a", "--baseline", "a/0"], "a/report.html"),
])  # fmt: skip
def test_the_path_of_the_page_is_printed(capsys, words, page):
    assert lines(capsys, 0, *words) == [page]
    assert Path(page).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_csv_and_figures_are_beside_the_page(capsys):
    expected = [*("a/report.html", "a/report.csv", "a/figures")]
    assert lines(capsys, 0, "a", "--csv", "--figures") == expected
    assert Path("a/figures").is_dir()
    assert lines(capsys, 0, "a", "--csv", "new/rows.csv") == ["a/report.html", "new/rows.csv"]
    assert Path("new/rows.csv").exists()
    Path("empty").mkdir()
    for file in ("empty", "a/report.csv/x.csv"):
        (line,) = lines(capsys, 2, "a", "--csv", file)
        assert line.startswith(f"scalebench: {file} cannot be written")
    frame = scalebench.load("a")
    assert list(pd.read_csv("a/report.csv")["run_id"]) == list(frame["run_id"])
