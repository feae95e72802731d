"""Submission of runs as a SLURM job through submitit, and job.json, which records it in the folder of each run.

submitit passes the job a pickle that names only a function and the job's folder; job_runs.json there lists the runs,
and each is described by the spec.json in its folder.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError
from scalebench.core.exit_with_parent import LAUNCHER_VARIABLE, PARENT_VARIABLE
from scalebench.core.json_files import read_record, write_json
from scalebench.core.process import RANK_ADDRESSES
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, JOB_SCRIPT, RUN_ID_VARIABLE, SUBMITIT_FOLDER
from scalebench.core.spec import RunSpec
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.resources import job_options, job_python_command, sweep_geometry, time_limit_minutes

if TYPE_CHECKING:
    from submitit import SlurmExecutor


JOB_MODULE, JOB_FUNCTION = "scalebench.sweeps.job_main", "run_job_and_exit"
SUBMIT_TIMEOUT_S = 60.0  # sbatch itself retries for a while while the controller is busy
# Variables of this process and its ranks, by which a job would take itself for one of them.
PROCESS_VARIABLES = (PARENT_VARIABLE, LAUNCHER_VARIABLE, RANK_ADDRESSES, RUN_ID_VARIABLE)
# Variables SBATCH_... that override options in the script, and the options concerned.
OVERRIDING_VARIABLES = {
    "TIMELIMIT": "time", "OUTPUT": "output", "ERROR": "output", "INPUT": "output", "JOB_NAME": "job-name",
    "MEM_PER_NODE": "mem", "MEM_PER_CPU": "mem", "MEM_PER_GPU": "mem", "GRES": "gres", "GPUS": "gres",
    "GPUS_PER_NODE": "gres", "GPUS_PER_TASK": "gres", "GPUS_PER_SOCKET": "gres", "OVERCOMMIT": "nodes",
    "DISTRIBUTION": "nodes", "REQUEUE": "no-requeue", "SIGNAL": "nodes", "OPEN_MODE": "output", "WAIT": "nodes",
    "ARRAY_INX": "nodes", "ACCOUNT": "account", "PARTITION": "partition", "QOS": "qos", "RESERVATION": "reservation",
    "CONSTRAINT": "constraint", "EXCLUSIVE": "exclusive",
    "HINT": "hint", "THREADS_PER_CORE": "hint", "GPU_BIND": "gres",
}  # fmt: skip
# Lines of submitit's script that are not wanted: its signal before the time limit, its accounting key, and appending to
# a log that is new.
UNWANTED_LINE = re.compile(r"#SBATCH --(?:signal=USR2|wckey=|open-mode=append)")


@dataclass
class Submission:
    """The record of a submitted run, as job.json holds it."""

    job_id: str
    submitted_at_s: float  # seconds since the epoch, by the clock of the submitting host
    partition: str | None = None  # as requested
    job_folder: str = "."  # where its log and its script are, from the folder of the run


def write_submission(submission: Submission, folder: Path) -> None:
    """Write job.json."""
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


def render_script(specs: Sequence[RunSpec], folder: Path, estimates_s: Sequence[float]) -> str:
    """Return the script that `submit_job` passes to sbatch; works without SLURM. InputError for a bad folder name."""
    executor = _make_executor(specs, folder, estimates_s)
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def submit_job(specs: Sequence[RunSpec], folder: Path, estimates_s: Sequence[float]) -> Submission:
    """Submit the job that does these runs, which are listed in its folder. `estimates_s` are the most seconds that each
    is estimated to take.

    Raises SlurmError with nothing submitted: JobRefused where this cluster will not accept the job, SlurmUnreachable
    where SLURM does not respond. InputError for a folder whose name SLURM would interpret. OSError.
    """
    executor = _make_executor(specs, folder, estimates_s)
    function = getattr(importlib.import_module(JOB_MODULE), JOB_FUNCTION)
    submitted_at_s = time.time()
    try:
        job_id = executor.submit(function, str(folder.absolute())).job_id
    except BaseException:
        remove_pickles(folder)
        raise
    return Submission(job_id, submitted_at_s, specs[0].config.hardware.slurm.partition)


def remove_pickles(folder: Path) -> None:
    """Remove the pickles of submitit when the job has read them or is over; the script stays for people to read."""
    for path in (folder / SUBMITIT_FOLDER).glob("*.pkl*"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def submitit_parameters(specs: Sequence[RunSpec], folder: Path, estimates_s: Sequence[float]) -> dict[str, Any]:
    """Return the parameters of the job for submitit; of several runs those of hardware.slurm are equal."""
    spec, geometry = specs[0], sweep_geometry(specs)
    slurm = spec.config.hardware.slurm
    # More tasks on a node than it has cores would be refused; the step then puts several on a core.
    cores = spec.config.hardware.cpus_per_node or geometry.tasks_per_node
    further: dict[str, Any] = {"output": str(folder.absolute() / JOB_LOG).replace("%", "%%"), "no-requeue": True}
    if slurm.reservation is not None:
        further["reservation"] = slurm.reservation
    return {
        "job_name": _name_job(specs),
        "nodes": geometry.nodes,
        "ntasks_per_node": min(geometry.tasks_per_node, cores),
        "cpus_per_task": geometry.cpus_per_task,
        "gres": geometry.gres,
        "mem": geometry.memory,
        "time": time_limit_minutes(specs, estimates_s),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "exclusive": slurm.exclusive or None,
        "setup": slurm.setup or None,
        "stderr_to_stdout": True,
        "use_srun": False,  # the program runs on the first node and starts the ranks itself
        "additional_parameters": further | job_options(slurm, geometry.gpus_per_node),
    }


def _name_job(specs: Sequence[RunSpec]) -> str:
    sizes = {spec.gpus for spec in specs}
    names = [specs[0].config.strategy.name] if len(specs) == 1 else []
    return "-".join(["scalebench", *names, *map(str, sizes)]) if len(sizes) == 1 else "scalebench-sweep"


def submission_environment(script: str) -> dict[str, str]:
    """Return this environment for sbatch, without variables that would override options of the script."""
    options = set(re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE))
    dropped = {f"SBATCH_{name}" for name, option in OVERRIDING_VARIABLES.items() if option in options}
    dropped |= {f"SBATCH_{option.upper().replace('-', '_')}" for option in options}  # those of hardware.slurm.lines
    # The job would get these of the shell beside its own SLURM_MEM_PER_NODE, and srun takes only one of them.
    dropped |= {f"SLURM_{name}" for name, option in OVERRIDING_VARIABLES.items() if option == "mem" in options}
    return {name: value for name, value in os.environ.items() if name not in dropped and name not in PROCESS_VARIABLES}


def _make_executor(specs: Sequence[RunSpec], folder: Path, estimates_s: Sequence[float]) -> SlurmExecutor:
    """Return submitit's executor with our script; submitit is imported here because that takes a while."""
    from submitit import SlurmExecutor, SlurmJob

    class Executor(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # submitit would look for srun, which only the nodes need to have

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            lines = super()._make_submission_file_text(command, uid).split("\n")
            while not lines[-1]:
                lines.pop()
            return "".join(f"{line}\n" for line in lines if not UNWANTED_LINE.match(line))

        def _submit_command(self, command: str) -> SlurmJob[Any]:
            script = self._make_submission_file_text(command, "")
            path = Path(self.folder) / JOB_SCRIPT
            path.write_text(script, encoding="utf-8")
            slurm = Slurm(specs[0].config.hardware.slurm.bin)
            environment = submission_environment(script)
            output = slurm.run("sbatch", str(path), timeout_s=SUBMIT_TIMEOUT_S, environment=environment)
            return SlurmJob(folder=self.folder, job_id=_parse_job_id(output), tasks=[0])

    absolute = folder.absolute()
    if re.search(r"%[jtAa]|\\", str(absolute)) or not str(absolute).isprintable():
        raise InputError(f"{absolute}: SLURM and submitit would interpret a part of this name; choose another folder")
    # exec: the shell of the script becomes Python, so that Python gets the signals that are sent to the script.
    executor = Executor(folder=absolute / SUBMITIT_FOLDER, python=f"exec {shlex.join(job_python_command(specs[0]))}")
    executor.update_parameters(**submitit_parameters(specs, folder, estimates_s))
    return executor


def _parse_job_id(output: str) -> str:
    match = re.search(r"Submitted batch job (\d+)", output)
    if match is None:
        raise SlurmError(f"sbatch did not say which job it is: {' '.join(output.split())[:200] or 'nothing'}")
    return match[1]
