"""The program as its users start it on a test cluster, while something goes wrong: for the tests of faults."""

import contextlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from scalebench.core.result import read_result
from scalebench.measure.progress import read_progress
from tests.cluster import hosts, processes
from tests.cluster.cluster import Cluster
from tests.cluster.settings import ClusterError

LIMIT_S = 240.0  # of a program, on a machine that has a lot else to do
JOB_LIMIT_S = 120.0  # of what a job gets round to
WORDS = (
    "hardware=testcluster hardware.max_jobs=null strategy=simulated baseline=none dataset.size=1000 measure=quick "
    "measure.evaluate=false measure.probes=false measure.monitor=false measure.repeats=1 sweep.report=false"
).split()
# Over at once, or going on until somebody ends it.
SHORT = ("gpus=1", "measure.min_s=0", "measure.max_s=0.2")
LASTING = ("gpus=4", "measure.min_s=600", "measure.max_s=600", "strategy.options.step_s=0.02")


def cases(folder, **told):
    """Words of a sweep over these settings, each in YAML and by its name, in this order. Words of the command line win
    over them."""
    (folder / "case").mkdir(parents=True)
    for name, text in told.items():
        (folder / "case" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")
    return ["--config-dir", str(folder), "--multirun", f"+case={','.join(told)}"]


def case(name, gpus=1, lasting=False, slurm="", variables="", more=""):
    """Settings that differ from all others, if only by a variable. What is told in words is of the hardware."""
    seconds, step_s = (600, 0.02) if lasting else (0.2, 0.001)
    lines = (
        f"gpus: {gpus}",
        f"measure: {{min_s: {seconds if lasting else 0}, max_s: {seconds}}}",
        f"strategy: {{options: {{step_s: {step_s}}}}}",
        "hardware:",
        f"  environment: {{CASE: {name}{variables}}}",
        f"  slurm: {{{slurm}}}",
        *(f"  {line}" for line in more.splitlines()),
    )
    return "".join(f"{line}\n" for line in lines)


@dataclass
class Program:
    """One that runs; `folder` is that of its sweep or of its run."""

    cluster: Cluster
    folder: Path
    process: subprocess.Popen[bytes]
    log: Path

    def job(self, number=None):
        """The number of the job of run `number`; None: of the only run."""
        path = (self.folder if number is None else self.folder / str(number)) / "job.json"
        processes.until(path.exists, JOB_LIMIT_S, f"{path}; {self.process.poll()}")
        return str(json.loads(path.read_text())["job_id"])

    def until(self, number, *states):
        """The number of the job, once it is in one of these states."""
        job = self.job(number)
        processes.until(lambda: state_of(self.cluster, job) in states, JOB_LIMIT_S, f"{'/'.join(states)} of {job}")
        return job

    def working(self, number, ranks):
        """The number of the job, once all of its ranks do updates."""
        job = self.until(number, "RUNNING")
        folder = self.folder if number is None else self.folder / str(number)

        def measuring():
            if (folder / "result.json").exists():
                raise AssertionError(f"job {job} is over: {read_result(folder / 'result.json').reason}")
            told = [read_progress(folder, rank) for rank in range(ranks)]
            return all(progress is not None and progress.phase == "measure" for progress in told)

        processes.until(measuring, JOB_LIMIT_S, f"{ranks} ranks of job {job}")
        return job

    def row(self, number=None):
        return read_result((self.folder if number is None else self.folder / str(number)) / "result.json")

    def until_row(self, number=None):
        path = (self.folder if number is None else self.folder / str(number)) / "result.json"
        processes.until(path.exists, JOB_LIMIT_S, str(path))
        return read_result(path)

    def until_said(self, words):
        processes.until(lambda: words in self.log.read_text(), JOB_LIMIT_S, f"'{words}' of the program")

    def ended(self, limit_s=LIMIT_S):
        """Exit status, and all that it has said."""
        self.process.wait(limit_s)
        return self.process.returncode, self.log.read_text()


@contextlib.contextmanager
def started(cluster, folder, *words, host=None, variables=None):
    """A program whose sweep, or run, goes to `folder`; on a host of the cluster, or on the machine."""
    command = [sys.executable, "-m", "scalebench", *WORDS, f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}"]
    command += words
    if host is not None:
        command = hosts.enter(cluster.folder, host, command)
    environment = {**cluster.environment, "COLUMNS": "300", **(variables or {})}
    handle, name = tempfile.mkstemp(suffix=".log", dir=".", prefix="said-")
    with open(handle, "wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield Program(cluster, folder, process, Path(name).absolute())
    finally:
        process.kill()
        process.wait()


def run(cluster, folder, *words, host=None, variables=None):
    """Exit status, and all that it has said."""
    with started(cluster, folder, *words, host=host, variables=variables) as program:
        return program.ended()


def state_of(cluster, job):
    return cluster.slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def queue_of(cluster):
    """Jobs that wait, run or end."""
    return cluster.slurm("squeue", "--noheader", "--format=%i %j %T").splitlines()


def quiet(cluster):
    """Whether no job is left and all nodes wait for one."""
    nodes = cluster.slurm("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()
    return not queue_of(cluster) and set(nodes) == {"idle"}


def clear(cluster):
    """Have no job, and all nodes; the jobs that there were."""
    with contextlib.suppress(ClusterError):  # a job that is about to end takes a moment
        processes.until(lambda: not queue_of(cluster), 15.0, "the end of all jobs")
    left = queue_of(cluster)
    if left:
        cluster.slurm("scancel", *(line.split()[0] for line in left))
    for node in cluster.nodes:
        cluster.mend(node)
    processes.until(lambda: quiet(cluster), JOB_LIMIT_S, "idle nodes and no jobs")
    return left


@pytest.fixture
def no_job_left(cluster):
    """All nodes wait for jobs, before and after, and no job of the test is in the queue."""
    clear(cluster)
    yield
    left = clear(cluster)
    assert not left, f"the test left jobs: {left}"
