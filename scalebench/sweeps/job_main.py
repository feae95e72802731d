"""The program of a SLURM job: performs its runs, each in its folder, on the first node of the job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scalebench.cluster import submit
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_RUNS_FILE
from scalebench.core.spec import read_spec, write_spec
from scalebench.runner.jobs.job import JobRuns
from scalebench.runner.parent import RunRequest, UnwrittenResult, run_spec
from scalebench.sweeps.cohort import Cohort

OnResult = Callable[[RunRequest, Result], None]


def run_job(folder: str, on_result: OnResult = lambda run, result: None) -> None:
    """Perform the runs of the job_runs.json in `folder`, and leave their results, also of failures.

    SIGTERM, which SLURM sends when a job is cancelled or at its time limit, ends the runs as Ctrl-C does, and so do the
    signals that its users have it send before.
    """
    job_folder, is_first = Path(folder), True
    try:
        with process.interrupt_at_signals():
            for unit in read_record(job_folder / JOB_RUNS_FILE, JobRuns).units:
                folders = [(job_folder / name).resolve() for name in unit]
                runs = [
                    RunRequest(number, read_spec(path), path, bare)
                    for number, (path, bare) in enumerate(zip(folders, unit.values(), strict=True))
                ]
                pause_s = 0.0 if is_first else max(run.spec.config.measure.cool_down_s for run in runs)
                is_first = False
                if process.cancelled.wait(pause_s):
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
        submissions = {run.number: submit.read_submission(run.folder) for run in runs}
        cohort, done = Cohort(runs, on_progress=lambda progress: None), set()
        for number, result in cohort.run():
            done.add(number)
            print_result(result)
            on_result(next(run for run in runs if run.number == number), result)
        for error in cohort.unwritten:
            print_unwritten(error)
            done |= {run.number for run in runs if run.folder == error.folder}
        is_stuck = not done
        runs = [run for run in runs if run.number not in done]
        for run in runs:  # its files were removed, and the program that submitted the job may be started again
            run.folder.mkdir(parents=True, exist_ok=True)
            write_spec(run.spec, run.folder)
            if (submission := submissions[run.number]) is not None:
                submit.write_submission(submission, run.folder)
        if is_stuck:
            break
    return [replace(run, spec=replace(run.spec, flags=[*run.spec.flags, "not_in_turns"])) for run in runs]


def run_alone(run: RunRequest, on_result: OnResult) -> None:
    """Do a run; one that cannot be done is described in the job's log, and the others go on."""
    try:
        result = run_spec(run.spec, run.folder)
        print_result(result)
        on_result(run, result)
    except UnwrittenResult as error:
        print_unwritten(error)
    except (InputError, OSError) as error:
        print(f"scalebench: {error}", flush=True)


def print_result(result: Result) -> None:
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    print(f"scalebench: {result.scale.strategy} gpus={result.scale.gpus} {text}", flush=True)


def print_unwritten(error: UnwrittenResult) -> None:
    print(f"scalebench: {error}", flush=True)
    print(error.record, flush=True)


if __name__ == "__main__":
    run_job(sys.argv[1])
