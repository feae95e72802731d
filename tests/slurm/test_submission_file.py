"""job.json: there, not there, or something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.errors import InputError
from scalebench.core.run_folder import JOB_FILE
from scalebench.slurm.submit import Submission, read_submission, write_submission


@pytest.mark.parametrize("partition", ["alpha", None])
def test_what_was_submitted_is_read_back(partition: str | None, tmp_path: Path) -> None:
    made = Submission("12", 1795233093.25, partition)
    write_submission(made, tmp_path)
    assert read_submission(tmp_path) == made


def test_a_folder_without_one_was_not_submitted(tmp_path: Path) -> None:
    assert read_submission(tmp_path) is None and read_submission(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["", "[]", '{"job_id": 12, "submitted_at_s": 1.0}', '{"job_id": "12"}'])
def test_a_file_that_is_none_of_ours_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / JOB_FILE).write_text(text)
    with pytest.raises(InputError, match=r"job\.json cannot be read: .*; remove it"):
        read_submission(tmp_path)
