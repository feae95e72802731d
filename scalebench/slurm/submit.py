"""A run as a job: the script, and its submission through submitit. Layer 2.

submitit hands the job a pickle, which names a function and the run's folder and holds nothing else; what the run is
stands in spec.json there.

What is left of a submission in the folder of its run: job.json. Layer 2.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record, write_json
from scalebench.core.process import signals_later
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, JOB_SCRIPT, SUBMITIT_FOLDER
from scalebench.core.spec import RunSpec
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.resources import geometry, parse, time_minutes

if TYPE_CHECKING:
    from submitit import SlurmExecutor


@dataclass
class Submission:
    """A run that is a job."""

    job_id: str
    submitted_at_s: float  # seconds since the epoch, by the clock of whoever submitted it
    partition: str | None = None  # that was asked for


def write_submission(submission: Submission, folder: Path) -> None:
    write_json(folder / JOB_FILE, submission)


def read_submission(folder: Path) -> Submission | None:
    """None where the run was not submitted from this folder; InputError for a file that is none of ours."""
    path = folder / JOB_FILE
    try:
        return read_record(path, Submission)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it") from error


JOB_MODULE, JOB_FUNCTION = "scalebench.runner.jobs.job_main", "job"
SUBMIT_LIMIT_S = 60.0  # sbatch itself tries again for a while where the controller is busy
# Of this process and its ranks: a job would take itself for one of them.
OURS_ONLY = ("SCALEBENCH_PARENT_PID", "SCALEBENCH_LAUNCHER", "SCALEBENCH_ADDRESSES", "SCALEBENCH_RUN_ID")
# Variables that change what a script says, and the options of it that they would overrule.
OVERRULING = {
    "TIMELIMIT": "time", "OUTPUT": "output", "ERROR": "output", "INPUT": "output", "JOB_NAME": "job-name",
    "MEM_PER_NODE": "mem", "MEM_PER_CPU": "mem", "MEM_PER_GPU": "mem", "GRES": "gres", "GPUS": "gres",
    "GPUS_PER_NODE": "gres", "GPUS_PER_TASK": "gres", "GPUS_PER_SOCKET": "gres", "OVERCOMMIT": "nodes",
    "DISTRIBUTION": "nodes", "REQUEUE": "no-requeue", "SIGNAL": "nodes", "OPEN_MODE": "output", "WAIT": "nodes",
    "ARRAY_INX": "nodes", "ACCOUNT": "account", "PARTITION": "partition", "QOS": "qos", "RESERVATION": "reservation",
    "CONSTRAINT": "constraint", "EXCLUSIVE": "exclusive",
}  # fmt: skip
# submitit's own that this job has no use for: its way to be told of the end, its key for accounting, and adding to a
# log that is new.
NOT_ASKED = re.compile(r"#SBATCH --(?:signal=USR2|wckey=|open-mode=append)")


def text(spec: RunSpec, folder: Path) -> str:
    """The script of the job, as `submit` gives it to sbatch. Needs no SLURM here. InputError for a folder's name."""
    executor = _executor(spec, folder)
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def submit(spec: RunSpec, folder: Path) -> Submission:
    """Submit the run in `folder`, which holds its spec.json; leaves job.json there.

    SlurmError, with nothing submitted: Refused for a job that this cluster will not take, Unreachable. InputError for
    a folder whose name SLURM would read as something else. OSError.
    """
    executor = _executor(spec, folder)
    function = getattr(importlib.import_module(JOB_MODULE), JOB_FUNCTION)
    submitted_at_s = time.time()
    with signals_later():  # a job whose number got lost would run on unseen
        try:
            job_id = executor.submit(function, str(folder.absolute())).job_id
        except BaseException:
            clean(folder)
            raise
        made = Submission(job_id, submitted_at_s, spec.config.hardware.slurm.partition)
        write_submission(made, folder)
    return made


def clean(folder: Path) -> None:
    """Remove what submitit hands over, when the job has taken it or is over; the script stays for people to read."""
    for path in (folder / SUBMITIT_FOLDER).glob("*.pkl*"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def parameters(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """What submitit is told of the job."""
    shape, slurm = geometry(spec), spec.config.hardware.slurm
    # The task count of a node beyond its cores would be refused; the step then puts several on a core.
    cores = spec.config.hardware.cpus_per_node or shape.tasks_per_node
    further: dict[str, Any] = {"output": str(folder.absolute() / JOB_LOG).replace("%", "%%"), "no-requeue": True}
    if slurm.reservation is not None:
        further["reservation"] = slurm.reservation
    return {
        "job_name": f"scalebench-{spec.config.strategy.name}-{spec.gpus}",
        "nodes": shape.nodes,
        "ntasks_per_node": min(shape.tasks_per_node, cores),
        "cpus_per_task": shape.cpus_per_task,
        "gres": shape.gres,
        "mem": shape.memory,
        "time": time_minutes(spec),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "exclusive": slurm.exclusive or None,
        "setup": slurm.setup or None,
        "stderr_to_stdout": True,
        "use_srun": False,  # the program stands on the first node and starts the ranks itself
        "additional_parameters": further | parse(slurm.lines),
    }


def variables(script: str) -> dict[str, str]:
    """This environment as a job shall find it, without what would have sbatch read `script` differently."""
    options = set(re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE))
    dropped = {f"SBATCH_{name}" for name, option in OVERRULING.items() if option in options}
    return {name: value for name, value in os.environ.items() if name not in dropped and name not in OURS_ONLY}


def _executor(spec: RunSpec, folder: Path) -> SlurmExecutor:
    """submitit's executor, which it takes a while to import."""
    from submitit import SlurmExecutor, SlurmJob

    class Executor(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # not to look for srun, which is asked for on the nodes only

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            lines = super()._make_submission_file_text(command, uid).splitlines()
            return "".join(f"{line}\n" for line in lines if not NOT_ASKED.match(line))

        def _submit_command(self, command: str) -> SlurmJob[Any]:
            script = self._make_submission_file_text(command, "")
            path = Path(self.folder) / JOB_SCRIPT
            path.write_text(script, encoding="utf-8")
            words = ["sbatch", str(path)]
            said = Slurm(spec.config.hardware.slurm.bin).run(
                *words, limit_s=SUBMIT_LIMIT_S, variables=variables(script)
            )
            return SlurmJob(folder=self.folder, job_id=_job_id(said), tasks=[0])

    absolute = folder.absolute()
    if re.search(r"%[jtAa]|[\n\\]", str(absolute)):
        raise InputError(f"{absolute}: SLURM and submitit would read a part of this name; take another folder")
    # exec: the shell of the script becomes Python, and Python gets the signals that are meant for it.
    made = Executor(folder=absolute / SUBMITIT_FOLDER, python=f"exec {shlex.quote(sys.executable)}")
    made.update_parameters(**parameters(spec, folder))
    return made


def _job_id(said: str) -> str:
    match = re.search(r"Submitted batch job (\d+)", said)
    if match is None:
        raise SlurmError(f"sbatch did not say which job it is: {' '.join(said.split())[:200] or 'nothing'}")
    return match[1]
