"""The plan of runs that a scheduler does: one table of their jobs, and the script of one of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.config.support import is_reachable
from scalebench.core.spec import RunSpec
from scalebench.core.untrusted import clean_text
from scalebench.sweeps.console import format_repeat
from scalebench.sweeps.estimate import estimate_s

if TYPE_CHECKING:
    from rich.table import Table

    from scalebench.slurm.resources import JobGeometry
    from scalebench.sweeps.console import Console
    from scalebench.sweeps.plan import SweepRun

COLUMNS = ("job", "jobs", "runs each", "nodes", "tasks per node", "cores per task", "GPUs per node", "minutes each")


def print_jobs(console: Console, jobs: Sequence[Sequence[SweepRun]], without_job: Sequence[SweepRun]) -> None:
    """Print a row for each job of these runs, or for equal ones of a run each; then why others have no job, and what
    all jobs may take at most."""
    if jobs:
        console.rich.print(make_job_table(jobs))
    for text in dict.fromkeys(_format_reason(run) for run in without_job):
        console.print_line(text)
    from scalebench.slurm.resources import sweep_geometry

    specs = [[run.spec for run in job] for job in jobs]
    node_hours = sum(sweep_geometry(job).nodes * _limit_minutes(job) for job in specs) / 60
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    total = f", {node_hours:,.1f} node-hours if each takes all of its minutes" if jobs else ""
    console.print_line(f"{count}{total}; nothing was submitted")


def print_remote_note(console: Console, specs: Sequence[RunSpec]) -> None:
    """Say for which hardware of these runs there is no sbatch here, so that less was checked."""
    for hardware in {spec.config.hardware.name: spec.config.hardware for spec in specs}.values():
        if not is_reachable(hardware):
            console.print_line(
                f"there is no sbatch here: the plan is for a login node of hardware={hardware.name}, whose packages "
                "were not checked"
            )


def make_job_table(jobs: Sequence[Sequence[SweepRun]]) -> Table:
    """Return the table of these jobs. Jobs of a single run are one row for each configuration, in which baselines that
    a sweep adds are marked; others are named by their devices and strategies."""
    from rich import box
    from rich.table import Table

    from scalebench.slurm.resources import job_geometry, sweep_geometry

    runs = [run for job in jobs for run in job]
    differing = [key for key in ("model", "hardware") if len({getattr(run.spec.config, key).name for run in runs}) > 1]
    rows: dict[object, list[Sequence[SweepRun]]] = {}
    for job in jobs:
        rows.setdefault(job[0].spec.fingerprint if len(job) == 1 else id(job), []).append(job)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "job" else "right", no_wrap=column == "job")
    for same in rows.values():
        job, first = same[0], same[0][0].spec
        label = first.label + (" (added)" if job[0].added else "")
        if len(job) > 1:
            sizes = sorted({run.spec.gpus for run in job if not run.added})
            label = f"gpus={','.join(map(str, sizes))}"
        label = " ".join([label, *(f"{key}={getattr(first.config, key).name}" for key in differing)])
        specs = [run.spec for run in job]
        geometry = job_geometry(first) if len(job) == 1 else sweep_geometry(specs)
        counts = (len(same), len(job), *_geometry_cells(geometry), _limit_minutes(specs))
        table.add_row(clean_text(label), *map(str, counts))
    return table


def print_largest_script(console: Console, jobs: Sequence[Sequence[SweepRun]], folder: Path, several: bool) -> None:
    """Print the batch script of the largest of these jobs, and for a job of one run the command in it that starts the
    ranks. `folder` is that of the sweep, or of the run."""
    from scalebench.slurm import resources, submit

    specs = [[run.spec for run in job] for job in jobs]
    largest = max(range(len(jobs)), key=lambda n: (resources.sweep_geometry(specs[n]).nodes, len(jobs[n]), -n))
    job, first = specs[largest], jobs[largest][0]
    own = f"{first.number}" if len(job) == 1 else f"job{min(run.number for run in jobs[largest])}"
    job_folder = folder / own if several else folder
    if len(jobs) > 1:
        console.print_line("\nThe largest job; the others differ in the numbers above, their name and their folder.")
    what = first.spec.label if len(job) == 1 else f"its {len(job)} runs"
    console.print_line(f"\n{what} would be submitted with sbatch:\n")
    console.print_line(submit.render_script(job, job_folder, [estimate_s(spec)[1] for spec in job]))
    if len(job) == 1:
        console.print_line("ranks, from within the job:\n")
        console.print_line(f"{shlex.join(resources.srun_command(job[0], job_folder))}\n")


def _limit_minutes(specs: Sequence[RunSpec]) -> int:
    from scalebench.slurm.resources import time_limit_minutes

    return time_limit_minutes(specs, [estimate_s(spec)[1] for spec in specs])


def _geometry_cells(geometry: JobGeometry) -> tuple[int | str, ...]:
    gpus = "-" if geometry.gpus_per_node is None else geometry.gpus_per_node
    tasks = geometry.tasks_per_node if geometry.even else f"up to {geometry.tasks_per_node}"
    return geometry.nodes, tasks, geometry.cpus_per_task, gpus


def _format_reason(run: SweepRun) -> str:
    repeat = "" if run.earlier is None else format_repeat(run.spec)
    return f"{run.spec.label}{repeat}: {run.explain_no_start()}"
