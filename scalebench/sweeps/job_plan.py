"""The plan of runs that a scheduler does: one table of their jobs, and the script of one of them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.config.support import is_reachable
from scalebench.core.spec import RunSpec
from scalebench.core.untrusted import clean_text
from scalebench.sweeps.console import format_repeat
from scalebench.sweeps.time_estimate import estimate_s

if TYPE_CHECKING:
    from rich.table import Table

    from scalebench.slurm.resources import JobGeometry
    from scalebench.sweeps.console import Console
    from scalebench.sweeps.plan import SweepRun

COLUMNS = ("nodes", "tasks per node", "cores per task", "GPUs per node", "minutes each")


def print_jobs(console: Console, runs: Sequence[SweepRun], one_job: bool = False) -> None:
    """Print a row for each configuration of these runs; then why some have no job, and what all jobs, or the one that
    does all runs, may take at most."""
    from scalebench.slurm.resources import sweep_geometry

    startable = [run for run in runs if run.starts]
    if startable:
        console.rich.print(make_job_table(startable, "runs" if one_job else "jobs"))
    for text in dict.fromkeys(_format_reason(run) for run in runs if not run.starts):
        console.print_line(text)
    specs = [run.spec for run in startable]
    jobs = [specs] if one_job else [[spec] for spec in specs]
    node_hours = sum(sweep_geometry(job).nodes * _limit_minutes(job) for job in jobs) / 60
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


def make_job_table(runs: Sequence[SweepRun], counted: str) -> Table:
    """Return the table of these runs, in which the repeats of a configuration are one row, and the baselines that a
    sweep adds are marked. `counted` says what each repeat is: one of the runs of a job, or a job."""
    from rich import box
    from rich.table import Table

    from scalebench.slurm.resources import job_geometry

    repeats = Counter(run.spec.fingerprint for run in runs)
    differing = [key for key in ("model", "hardware") if len({getattr(run.spec.config, key).name for run in runs}) > 1]
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in ("run", counted, *COLUMNS):
        table.add_column(column, justify="left" if column == "run" else "right", no_wrap=column == "run")
    for run in {run.spec.fingerprint: run for run in runs}.values():
        spec = run.spec
        label = " ".join([spec.label, *(f"{key}={getattr(spec.config, key).name}" for key in differing)])
        label += " (added)" if run.added else ""
        counts = (repeats[spec.fingerprint], *_geometry_cells(job_geometry(spec)), _limit_minutes([spec]))
        table.add_row(clean_text(label), *map(str, counts))
    return table


def print_script(console: Console, spec: RunSpec, folder: Path) -> None:
    """Print the batch script that a run would be submitted as, and the command in it that starts its ranks."""
    from scalebench.slurm import resources, submit

    console.print_line(f"\n{spec.label} would be submitted with sbatch:\n")
    console.print_line(submit.render_script(spec, folder, estimate_s(spec)[1]))
    console.print_line("ranks, from within the job:\n")
    console.print_line(f"{shlex.join(resources.srun_command(spec, folder))}\n")


def print_largest_script(console: Console, specs: Sequence[RunSpec], folders: Sequence[Path]) -> None:
    """Print the script of the largest of these runs, each with the folder that it would get."""
    from scalebench.slurm.resources import job_geometry

    sizes = [(job_geometry(spec).nodes, job_geometry(spec).tasks) for spec in specs]
    largest = sizes.index(max(sizes))
    if len(specs) > 1:
        console.print_line("\nThe largest job; the others differ in the numbers above, their name and their folder.")
    print_script(console, specs[largest], folders[largest])


def print_sweep_script(console: Console, specs: Sequence[RunSpec], folder: Path) -> None:
    """Print the batch script that a sweep would be submitted as."""
    from scalebench.slurm import submit

    console.print_line("\nthis sweep would be submitted with sbatch as one job:\n")
    console.print_line(submit.render_sweep_script(specs, folder, [estimate_s(spec)[1] for spec in specs]))


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
