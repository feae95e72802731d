"""The program of a job: `python -m scalebench.sweeps.job_main FOLDER` does the runs of a SLURM job, each in its folder,
on its first node; with FILE PORT those of a JobSet, on the pods whose agents connect. Each result is then a line of its
log, which the program that made the JobSet reads."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scalebench.cluster import submit
from scalebench.cluster.jobset import JOBSET_VARIABLE
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.json_files import format_json, read_record, read_tail
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_RUNS_FILE, RESULT_FILE, SPEC_FILE, monitor_path
from scalebench.core.spec import read_spec, write_spec
from scalebench.runner.jobs.job import JobRuns
from scalebench.runner.launchers import waiting
from scalebench.runner.parent import RunRequest, run_spec
from scalebench.sweeps.cohort import Cohort

PREFIX = "scalebench-result"  # of a line with the number of a run and its files
MAX_LOG_BYTES = 1 << 16  # of the rank that failed
OnResult = Callable[[RunRequest, Result], None]


def run_job(folder: str, on_result: OnResult = lambda run, result: None) -> None:
    """Perform the runs of the job_runs.json in `folder`, and leave their results, also of failures.

    SIGTERM, which SLURM sends when a job is cancelled or at its time limit, ends the runs as Ctrl-C does, and so do the
    signals that its users have it send before.
    """
    job_folder = Path(folder)
    try:
        with process.interrupt_at_signals():
            for unit in read_record(job_folder / JOB_RUNS_FILE, JobRuns).units:
                folders = [(job_folder / name).resolve() for name in unit]
                runs = [
                    RunRequest(number, read_spec(path), path, bare)
                    for number, (path, bare) in enumerate(zip(folders, unit.values(), strict=True))
                ]
                if process.cancelled.is_set():
                    raise KeyboardInterrupt
                for run in take_turns(runs, on_result) if len(runs) > 1 else runs:
                    run_alone(run, on_result)
    except KeyboardInterrupt:
        print("scalebench: cancelled", flush=True)
    except (InputError, OSError, ValueError) as error:
        print(f"scalebench: {error}", flush=True)


def take_turns(runs: list[RunRequest], on_result: OnResult) -> list[RunRequest]:
    """Do these runs side by side. Those that have left no result, since there was no room for them beside the others,
    take turns with each other next; return those that have to be done alone."""
    while len(runs) > 1:
        submissions, done = {run: submit.read_submission(run.folder) for run in runs}, set()
        for run, result in Cohort(runs, on_progress=lambda progress: None).run():
            done.add(run)
            print_result(result)
            on_result(run, result)
        runs = [run for run in runs if run not in done]
        for run in runs:  # its files were removed, and the program that submitted the job may be started again
            run.folder.mkdir(parents=True, exist_ok=True)
            write_spec(run.spec, run.folder)
            if (submission := submissions[run]) is not None:
                submit.write_submission(submission, run.folder)
        if not done:
            break
    return [replace(run, spec=replace(run.spec, flags=[*run.spec.flags, "not_in_turns"])) for run in runs]


def run_alone(run: RunRequest, on_result: OnResult) -> None:
    """Do a run; one that cannot be done is described in the job's log, and the others go on."""
    try:
        result = run_spec(run.spec, run.folder)
        print_result(result)
        on_result(run, result)
    except (InputError, OSError) as error:
        print(f"scalebench: {error}", flush=True)


def print_result(result: Result) -> None:
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    print(f"scalebench: {result.scale.strategy} gpus={result.scale.gpus} {text}", flush=True)


def pack_runs(units: Sequence[Sequence[RunRequest]]) -> bytes:
    """Return the runs of a JobSet, whose units follow each other, as the leader reads them from its Secret."""
    folders = [{str(run.number): run.bare for run in unit} for unit in units]
    files = {f"{run.number}/{SPEC_FILE}": format_json(run.spec).encode() for unit in units for run in unit}
    return _pack(files | {JOB_RUNS_FILE: format_json(JobRuns(folders)).encode()})


def unpack_result(line: str) -> tuple[int, dict[str, bytes]]:
    """Return the number of a run and its files from a line of the leader's log; ValueError for another line."""
    prefix, number, content = line.split(" ")
    if prefix != PREFIX:
        raise ValueError(line)
    return int(number), _unpack(base64.b64decode(content))


def _pack(files: dict[str, bytes]) -> bytes:
    tree = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return gzip.compress(json.dumps(tree).encode())


def _unpack(content: bytes) -> dict[str, bytes]:
    return {str(name): base64.b64decode(text) for name, text in json.loads(gzip.decompress(content)).items()}


def print_files(run: RunRequest, result: Result) -> None:
    """Print the result of a run, with the series of its monitors and the end of the log that explains a failure."""
    paths = (run.folder / RESULT_FILE, *(monitor_path(run.folder, node) for node in range(run.spec.nodes)))
    files = {path.name: path.read_bytes() for path in paths if path.exists()}
    if RESULT_FILE not in files:  # as on a full disk
        return
    with contextlib.suppress(OSError):
        if result.log is not None:
            files[result.log] = read_tail(run.folder / result.log, MAX_LOG_BYTES).encode()
    print(PREFIX, run.folder.name, base64.b64encode(_pack(files)).decode(), flush=True)


def lead_jobset(path: str, port: str) -> None:
    """Do the runs of this file on the pods of a JobSet."""
    folder = Path(os.environ[JOBSET_VARIABLE]).absolute()
    for name, content in _unpack(Path(path).read_bytes()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    waiting.listen(int(port), os.environ.pop(process.KEY_VARIABLE))
    run_job(str(folder), print_files)


if __name__ == "__main__":
    lead_jobset(*sys.argv[1:]) if len(sys.argv) > 2 else run_job(sys.argv[1])
