"""The program of a SLURM job: performs one run in its folder, or a sweep, on the first node of the job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.process import build_python_command
from scalebench.core.result import Result
from scalebench.core.spec import read_spec
from scalebench.runner.parent import UnwrittenResult, run_spec
from scalebench.slurm import submit


def run_job_and_exit(folder: str) -> NoReturn:
    """Perform the run of a job, and end the process, since submitit would otherwise leave another file of its own."""
    submit.remove_pickles(Path(folder))
    run_job(folder)
    raise SystemExit(0)


def become_sweep(folder: str, *arguments: str) -> NoReturn:
    """Replace this process by the program that does a sweep within this job."""
    submit.remove_pickles(Path(folder))
    os.execv(sys.executable, build_python_command("-m", "scalebench", *arguments))


def run_job(folder: str) -> None:
    """Perform the run of the spec.json in `folder`, and leave its result there, also of a failure.

    SIGTERM, which SLURM sends when a job is cancelled or at its time limit, ends the run as Ctrl-C does, and so do the
    signals that its users have it send before.
    """
    path = Path(folder)
    try:
        with process.interrupt_at_signals():
            print(_format_result(run_spec(read_spec(path), path)), flush=True)
    except KeyboardInterrupt:
        print("scalebench: cancelled", flush=True)
    except (InputError, OSError) as error:
        print(f"scalebench: {error}", flush=True)
        if isinstance(error, UnwrittenResult):
            print(error.record, flush=True)


def _format_result(result: Result) -> str:
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    return f"scalebench: {result.scale.strategy} gpus={result.scale.gpus} {text}"
