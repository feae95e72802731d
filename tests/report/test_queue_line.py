"""The line that tells how the runs of a scheduler are getting on."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.cluster import JobRequest, Queue
from scalebench.measure.progress import ProgressFile
from scalebench.report import queue_line
from tests.helpers import null_spec


def queue(**parts: object) -> Queue:
    return Queue(**{"waiting": 0, "pending": 0, "reason": None, "runs": (), "over": 0, **parts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"waiting": 1}, "0 of 1 run over, 1 not submitted yet"),
        ({"over": 4, "pending": 3, "reason": "Priority"}, "4 of 7 runs over, 3 pending (Priority)"),
        ({"over": 2, "pending": 1}, "2 of 3 runs over, 1 pending"),
        ({"over": 2}, "2 of 2 runs over"),
        ({"pending": 1, "trouble": "timed out"}, "0 of 1 run over, 1 pending, nothing heard of SLURM: timed out"),
    ],
)
def test_what_there_is_is_told_and_nothing_else(parts: dict[str, object], line: str) -> None:
    assert queue_line.counts(queue(**parts)) == line


def test_the_first_that_run_tell_their_phase(tmp_path: Path) -> None:
    """One that has not begun to write has none; the third is one too many for a line."""
    runs = []
    for number, gpus in enumerate((1, 2, 4)):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(JobRequest(number, null_spec(gpus=gpus), folder))
        if number:
            ProgressFile(folder, 0, 1).phase("warmup")
    assert queue_line.words(queue(runs=tuple(runs))) == "0 of 3 runs over, 3 running; null gpus=2: warmup"
