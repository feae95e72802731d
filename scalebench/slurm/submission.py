"""What is left of a submission in the folder of its run: job.json. Layer 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalebench.records import read_record, write_json
from scalebench.run_folder import JOB_FILE
from scalebench.spec import InputError


@dataclass
class Submission:
    """A run that is a job."""

    job_id: str
    submitted_at_s: float  # seconds since the epoch, by the clock of whoever submitted it
    partition: str | None = None  # that was asked for


def write_submission(submission: Submission, folder: Path) -> None:
    write_json(folder / JOB_FILE, submission)


def read_submission(folder: Path) -> Submission | None:
    """None where the run was not submitted from this folder; InputError for a file that is none of ours."""
    path = folder / JOB_FILE
    try:
        return read_record(path, Submission)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it") from error
