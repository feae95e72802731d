"""Submission of runs as a SLURM job, and job.json, which records it in the folder of each run.

The job's script starts the program of a job with the job's folder. There job_runs.json lists the runs, and each is
described by the spec.json in its folder.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.cluster.commands import Slurm, SlurmError
from scalebench.cluster.resources import (
    NAME_KEYS,
    job_options,
    job_python_command,
    sweep_geometry,
    time_limit_minutes,
)
from scalebench.core.errors import InputError
from scalebench.core.exit_with_parent import LAUNCHER_VARIABLE, PARENT_VARIABLE
from scalebench.core.json_files import read_record, write_json
from scalebench.core.process import RANK_ADDRESSES
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, JOB_SCRIPT, RUN_ID_VARIABLE
from scalebench.core.spec import RunSpec, SlurmSpec

JOB_MODULE = "scalebench.sweeps.job_main"  # the program of a job
SUBMIT_TIMEOUT_S = 60.0  # sbatch itself retries for a while while the controller is busy
# Variables of this process and its ranks, by which a job would take itself for one of them.
PROCESS_VARIABLES = (PARENT_VARIABLE, LAUNCHER_VARIABLE, RANK_ADDRESSES, RUN_ID_VARIABLE)


@dataclass
class Submission:
    """The record of a submitted run, as job.json holds it."""

    job_id: str  # or the name of a JobSet
    submitted_at_s: float  # seconds since the epoch, by the clock of the submitting host
    partition: str | None = None  # as requested
    job_folder: str = "."  # where its log and its script are, from the folder of the run
    number: int = 0  # of the run in its JobSet


def write_submission(submission: Submission, folder: Path) -> None:
    write_json(folder / JOB_FILE, submission)


def read_submission(folder: Path) -> Submission | None:
    """Read job.json; None where the run was not submitted from this folder, InputError where it cannot be read."""
    path = folder / JOB_FILE
    try:
        return read_record(path, Submission)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it") from error


def submit_job(specs: Sequence[RunSpec], folder: Path, estimates_s: Sequence[float]) -> Submission:
    """Submit the job that does these runs, which are listed in its folder. `estimates_s` are the most seconds that each
    is estimated to take.

    Raises SlurmError with nothing submitted: JobRefused where this cluster will not accept the job, SlurmUnreachable
    where SLURM does not respond. InputError for a folder whose name SLURM would interpret. OSError.
    """
    script, path = render_script(specs, folder, estimates_s), folder.absolute() / JOB_SCRIPT
    slurm = specs[0].config.hardware.slurm
    path.write_text(script, encoding="utf-8")
    submitted_at_s = time.time()
    output = Slurm(slurm.bin).run(
        "sbatch", str(path), timeout_s=SUBMIT_TIMEOUT_S, environment=submission_environment(slurm)
    )
    if (match := re.search(r"Submitted batch job (\d+)", output)) is None:
        raise SlurmError(f"sbatch did not say which job it is: {' '.join(output.split())[:200] or 'nothing'}")
    return Submission(match[1], submitted_at_s, slurm.partition)


def render_script(specs: Sequence[RunSpec], folder: Path, estimates_s: Sequence[float]) -> str:
    """Return the script that `submit_job` passes to sbatch; works without SLURM. InputError for a bad folder name."""
    absolute = str(folder.absolute())
    if "\\" in absolute or not absolute.isprintable():
        raise InputError(f"{absolute}: SLURM would interpret a part of this name; choose another folder")
    slurm, geometry = specs[0].config.hardware.slurm, sweep_geometry(specs)  # of several runs it is equal
    # More tasks on a node than it has cores would be refused; the step then puts several on a core.
    cores = specs[0].config.hardware.cpus_per_node or geometry.tasks_per_node
    sizes = {spec.gpus for spec in specs}
    names = [specs[0].config.strategy.name] if len(specs) == 1 else []
    options = {
        "job-name": "-".join(["scalebench", *names, *map(str, sizes)]) if len(sizes) == 1 else "scalebench-sweep",
        "nodes": geometry.nodes,
        "ntasks-per-node": min(geometry.tasks_per_node, cores),
        "cpus-per-task": geometry.cpus_per_task,
        "gres": geometry.gres,
        "mem": geometry.memory,
        "time": time_limit_minutes(specs, estimates_s),
        **{key: getattr(slurm, key) for key in NAME_KEYS},
        "exclusive": slurm.exclusive or None,
        "no-requeue": True,
        "output": f"{absolute}/{JOB_LOG}".replace("%", "%%"),
        **job_options(slurm, geometry.gpus_per_node),
    }
    lines = ["#!/bin/bash", "", *(f"#SBATCH {option}" for option in format_options(options))]
    lines += ["", *slurm.setup, ""] if slurm.setup else [""]
    # exec: the shell of the script becomes Python, so that Python gets the signals that are sent to the script.
    program = [*job_python_command(specs[0]), "-u", "-m", JOB_MODULE, absolute]
    return "".join(f"{line}\n" for line in [*lines, f"exec {shlex.join(program)}"])


def format_options(options: Mapping[str, object]) -> list[str]:
    """Return the options that are not None as sbatch reads them; True is one without a value."""
    present = sorted((name, value) for name, value in options.items() if value is not None)
    return [f"--{name}" + ("" if value is True else f"={shlex.quote(str(value))}") for name, value in present]


def submission_environment(slurm: SlurmSpec) -> dict[str, str]:
    """Return this environment for sbatch. Of the variables SBATCH_..., which override the script, it has those of names
    (SBATCH_ACCOUNT) that hardware.slurm leaves open."""
    open_names = {f"SBATCH_{key.upper()}" for key in NAME_KEYS if getattr(slurm, key) is None}
    # The job would get SLURM_MEM_PER_... of the shell beside its own, and srun takes only one of them.
    return {
        name: value
        for name, value in os.environ.items()
        if name in open_names or not (name.startswith(("SBATCH_", "SLURM_MEM_PER_")) or name in PROCESS_VARIABLES)
    }
