"""The program of a JobSet's leader: `python -m scalebench.sweeps.jobset_main FILE PORT` does the runs of that file on
the pods whose agents connect to it. Each result is a line of its log, which the program that made the JobSet reads."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scalebench.cluster.jobset import JOBSET_VARIABLE
from scalebench.core.json_files import format_json, read_tail
from scalebench.core.process import KEY_VARIABLE
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_RUNS_FILE, RESULT_FILE, SPEC_FILE, monitor_path
from scalebench.runner.jobs.job import JobRuns
from scalebench.runner.launchers import waiting
from scalebench.runner.parent import RunRequest
from scalebench.sweeps.job_main import run_job

PREFIX = "scalebench-result"  # of a line with the number of a run and its files
MAX_LOG_BYTES = 1 << 16  # of the rank that failed


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
    with contextlib.suppress(OSError):
        if result.log is not None:
            files[result.log] = read_tail(run.folder / result.log, MAX_LOG_BYTES).encode()
    print(PREFIX, run.folder.name, base64.b64encode(_pack(files)).decode(), flush=True)


def main(path: str, port: str) -> int:
    folder = Path(os.environ[JOBSET_VARIABLE]).absolute()
    for name, content in _unpack(Path(path).read_bytes()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    waiting.listen(int(port), os.environ.pop(KEY_VARIABLE))
    run_job(str(folder), print_files)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
