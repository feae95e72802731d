"""Runs one run in its folder, as a job of SLURM does on its first node. Layer 3."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NoReturn

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.spec import read_spec
from scalebench.runner.parent import run
from scalebench.slurm import submit


def job(folder: str) -> NoReturn:
    """Do all that a job does, and end the process: submitit would leave another file of its own otherwise."""
    submit.clean(Path(folder))
    run_spec_of(folder)
    raise SystemExit(0)


def run_spec_of(folder: str) -> None:
    """Run the spec.json of `folder`, and leave its result there, which also has the reason of a failure.

    SIGTERM, which the processes of a job get when it is cancelled or its time is over, ends the run as Ctrl-C does.
    """
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _interrupt)
    path = Path(folder)
    try:
        print(_line(run(read_spec(path), path)), flush=True)
    except KeyboardInterrupt:
        print("scalebench: cancelled", flush=True)
    except (InputError, OSError) as error:
        print(f"scalebench: {error}", flush=True)


def _interrupt(number: int, frame: Any) -> None:
    process.cancelled.set()
    raise KeyboardInterrupt


def _line(result: Result) -> str:
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    return f"scalebench: {result.scale.strategy} gpus={result.scale.gpus} {text}"
