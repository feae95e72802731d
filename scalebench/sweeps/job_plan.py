"""The plan of runs that a scheduler does: one table of their jobs, and the script of one of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from scalebench.cluster.jobset import is_on_pods
from scalebench.config.support import is_reachable
from scalebench.core.untrusted import clean_text
from scalebench.sweeps.console import Console, format_repeat
from scalebench.sweeps.estimate import estimate_s
from scalebench.sweeps.plan import SweepRun

COLUMNS = ("job", "jobs", "runs each", "nodes", "tasks per node", "cores per task", "GPUs per node", "minutes each")
Job = Sequence[SweepRun]  # its runs
# The command that submits jobs, and where it is, by scheduler.
SUBMITTED = {"slurm": ("sbatch", "a login node"), "kubernetes": ("kubectl", "a machine with access to the cluster")}


def print_jobs(
    console: Console, jobs: Sequence[Job], without_job: Sequence[SweepRun], folder: Path, several: bool
) -> None:
    """Print a row for each job, or for equal ones of a run each; why other runs have no job; what all jobs may take at
    most; and the batch script of the largest one. `folder` is that of the sweep (`several`), or of the run."""
    from rich import box
    from rich.table import Table

    from scalebench.cluster.resources import job_geometry, sweep_geometry, time_limit_minutes

    def limit_minutes(job: Job) -> int:
        return time_limit_minutes([run.spec for run in job], [estimate_s(run.spec)[1] for run in job])

    runs = [run for job in jobs for run in job]
    differing = [key for key in ("model", "hardware") if len({getattr(run.spec.config, key).name for run in runs}) > 1]
    rows: dict[object, list[Job]] = {}
    for job in jobs:
        rows.setdefault(job[0].spec.fingerprint if len(job) == 1 else id(job), []).append(job)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "job" else "right", no_wrap=column == "job")
    for same in rows.values():
        job, first, specs = same[0], same[0][0].spec, [run.spec for run in same[0]]
        label = first.label + (" (added)" if job[0].added else "")  # a baseline that the sweep adds
        if len(job) > 1:
            label = f"gpus={','.join(map(str, sorted({run.spec.gpus for run in job if not run.added})))}"
        label = " ".join([label, *(f"{key}={getattr(first.config, key).name}" for key in differing)])
        geometry = job_geometry(first) if len(job) == 1 else sweep_geometry(specs)
        tasks = f"{'' if geometry.even else 'up to '}{geometry.tasks_per_node}"
        gpus = "-" if geometry.gpus_per_node is None else geometry.gpus_per_node
        cells = (len(same), len(job), geometry.nodes, tasks, geometry.cpus_per_task, gpus, limit_minutes(job))
        table.add_row(clean_text(label), *map(str, cells))
    if jobs:
        console.rich.print(table)
    reasons = (
        f"{run.spec.label}{'' if run.earlier is None else format_repeat(run.spec)}: {run.expect()[1]}"
        for run in without_job
    )
    for text in dict.fromkeys(reasons):
        console.print_line(text)
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    node_hours = sum(sweep_geometry([run.spec for run in job]).nodes * limit_minutes(job) for job in jobs) / 60
    total = f", {node_hours:,.1f} node-hours if each takes all of its minutes" if jobs else ""
    console.print_line(f"{count}{total}; nothing was submitted")
    for hardware in {run.spec.config.hardware.name: run.spec.config.hardware for run in runs}.values():
        if not is_reachable(hardware):  # less was checked
            command, where = SUBMITTED[hardware.scheduler]
            console.print_line(
                f"there is no {command} here: the plan is for {where} of hardware={hardware.name}, whose packages "
                "were not checked"
            )
    if jobs:
        _print_largest_script(console, jobs, folder, several)


def _print_largest_script(console: Console, jobs: Sequence[Job], folder: Path, several: bool) -> None:
    """Print the batch script of the largest of these jobs, and for a job of one run the command in it that starts the
    ranks."""
    from scalebench.cluster import resources, submit
    from scalebench.runner.launchers import choose_launcher
    from scalebench.sweeps.jobset_runs import make_manifest

    specs = [[run.spec for run in job] for job in jobs]
    largest = max(range(len(jobs)), key=lambda n: (resources.sweep_geometry(specs[n]).nodes, len(jobs[n]), -n))
    job, first = specs[largest], jobs[largest][0]
    own = f"{first.number}" if len(job) == 1 else f"job{min(run.number for run in jobs[largest])}"
    job_folder = folder / own if several else folder
    if len(jobs) > 1:
        console.print_line("\nThe largest job; the others differ in the numbers above, their name and their folder.")
    what = first.spec.label if len(job) == 1 else f"its {len(job)} runs"
    if is_on_pods(job[0]):
        secret = "a Secret of the same name has the agents' key and the specs of the runs"
        console.print_line(f"\n{what} would be submitted with kubectl; {secret}:\n")
        console.print_line(OmegaConf.to_yaml(OmegaConf.create(make_manifest(job))))
        return
    console.print_line(f"\n{what} would be submitted with sbatch:\n")
    console.print_line(submit.render_script(job, job_folder, [estimate_s(spec)[1] for spec in job]))
    if len(job) == 1:
        by_srun = shlex.join(resources.srun_command(job[0], job_folder))
        starters = {"slurm": by_srun, "mpi": "mpirun, with the nodes of the job", "command": "script.command"}
        console.print_line("ranks, from within the job:\n")
        console.print_line(f"{starters[choose_launcher(job[0], 'allocation')]}\n")
