"""The program as its users start it, on a test cluster, with commands of SLURM that log each call."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from scalebench.cluster.submit import read_submission
from scalebench.core.result import read_result
from scalebench.measure.progress import read_progress
from tests.cluster import hosts
from tests.cluster.cluster import ROOT
from tests.cluster.processes import until
from tests.cluster.settings import ClusterError

LIMIT_S = 500.0  # of a sweep
PATIENCE_S = 120.0  # with what SLURM, or a job, gets round to sooner or later
# Over in no time: nothing is asked but that it runs. The loss of each update is in the record.
TINY = (
    "hardware=testcluster hardware.max_jobs=null dataset.size=1000 measure=quick measure.warmup_steps=5 "
    "measure.warmup_max_s=0.2 measure.block_s=0.0001 measure.evaluate=false measure.probes=false measure.monitor=false"
).split()
BRIEF = ("measure.min_s=0", "measure.max_s=0.2")
# Of runs that last until somebody ends them.
ENDLESS = ("measure.min_s=500", "measure.max_s=500")
CALL = """\
#!/bin/sh
[ -n "$SLURM_JOB_ID" ] || echo "{name} $*" >>{log}
exec {command} "$@"
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str
    lasted_s: float


@dataclass(frozen=True)
class Case:
    """One run of a sweep over settings, and the row that it has to have."""

    status: str = "ok"
    reason: str | None = None  # a pattern; {job} is the number of its job
    state: str | None = None  # SLURM's last word on the job
    gpus: int = 1
    lasts: bool = False  # until somebody ends it
    slurm: str = ""  # settings in YAML: of the job,
    environment: str = ""  # of its environment,
    hardware: str = ""  # and others of the hardware

    def to_yaml(self, name):
        """Write settings that differ from all others, if only by a variable."""
        seconds, step_s = ("min_s: 600, max_s: 600", 0.02) if self.lasts else ("min_s: 0, max_s: 0.2", 0.001)
        return (
            f"# @package _global_\ngpus: {self.gpus}\nmeasure: {{{seconds}}}\n"
            f"strategy: {{options: {{step_s: {step_s}}}}}\n"
            f"hardware:\n  environment: {{CASE: {name}{self.environment}}}\n  slurm: {{{self.slurm}}}\n{self.hardware}"
        )


class Program:
    """`python -m scalebench --multirun` in a folder of its own, which holds the sweep."""

    def __init__(self, cluster, folder, cache):
        self.cluster, self.folder, self.sweep = cluster, folder, folder / "sweep"
        self.cache, self.bin, self._log = cache, folder / "bin", folder / "calls"
        self.bin.mkdir(parents=True)
        for command in cluster.bin.iterdir():
            path = self.bin / command.name
            path.write_text(CALL.format(name=command.name, log=self._log, command=command))
            path.chmod(0o755)
        own = {"SCALEBENCH_CACHE": str(cache), "SCALEBENCH_PLUGINS": "", "PYTHONPATH": str(ROOT)}
        self.environment = {**cluster.environment, **own}

    def words(self, text, *more, report=False, several=True):
        """Of the command line; `text` is cut into words as a shell does it. The folder of a single run is `sweep`."""
        where = [f"hydra.sweep.dir={self.sweep}", f"hydra.run.dir={self.sweep}", f"hardware.slurm.bin={self.bin}"]
        told = [*TINY, *(() if "+case=" in text else BRIEF), f"sweep.report={str(report).lower()}", *where]
        sweep = ["--multirun", "measure.repeats=1"] if several else []
        if several and "hardware.slurm.jobs" not in text:
            told.append("hardware.slurm.jobs=per_run")  # most tests are of single jobs
        return [sys.executable, "-m", "scalebench", *sweep, *told, *shlex.split(text), *more]

    def run(self, text, *more, limit_s=LIMIT_S, **options):
        begin_s = time.monotonic()
        with self.started(text, *more, **options) as process:
            out, err = process.communicate(timeout=limit_s)
        return Done(process.returncode, out, err, time.monotonic() - begin_s)

    @contextmanager
    def started(self, text, *more, report=False, several=True, before=(), host=None, stderr=subprocess.PIPE):
        """While it goes on. Nobody sits at a terminal. What is left of it at the end is killed. `before` are words
        that start it, such as nohup."""
        command = [*before, *self.words(text, *more, report=report, several=several)]
        if host is not None:
            command = hosts.enter(self.cluster.folder, host, command)
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        try:
            yield process
        finally:
            below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for each in [*below, process]:  # salloc that is killed leaves its command
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.communicate()

    def salloc(self, options):
        """Words before a command that have it run in an allocation, on the head, where no rank is."""
        return [str(self.cluster.bin / "salloc"), *options.split()]

    def words_of_cases(self, cases):
        """Return words for a sweep over these cases, by name and in this order. Other words win over them."""
        folder = self.folder / "cases" / "case"
        folder.mkdir(parents=True)
        for name, case in cases.items():
            (folder / f"{name}.yaml").write_text(case.to_yaml(name))
        return f"strategy=simulated baseline=none --config-dir {folder.parent} +case={','.join(cases)}"

    def check_cases(self, cases):
        """Return the rows of these cases, once each is as expected."""
        rows = self.rows()
        for row, (name, case) in zip(rows.values(), cases.items(), strict=True):
            job = row.scheduler and row.scheduler.job_id
            seen = f"{name}: {row.status}, {row.scheduler and row.scheduler.state}, {row.reason}"
            assert row.status == case.status, seen
            assert re.fullmatch(f"(?s){(case.reason or 'None').format(job=job)}", str(row.reason)), seen
            assert case.state is None or (row.scheduler is not None and row.scheduler.state == case.state), seen
        return list(rows.values())

    def path(self, number, name):
        """A file of run `number`; None: of the only run."""
        return (self.sweep if number is None else self.sweep / str(number)) / name

    def rows(self):
        """By the number of the run in the sweep."""
        found = {int(path.parent.name): path for path in self.sweep.glob("*/result.json")}
        return {number: read_result(found[number]) for number in sorted(found)}

    def row(self, number=None):
        return read_result(self.path(number, "result.json"))

    def calls(self, name):
        """Of a command of SLURM, with its words; those from within jobs are left out."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if line.split()[0] == name]

    def states(self):
        """SLURM's word on each job of this sweep that the queue still knows: number -> state."""
        ids = self.ids()
        told = self.cluster.slurm("squeue", "--noheader", "--states=all", "--format=%i %T").splitlines()
        return {job: state for job, state in (line.split() for line in told) if job in ids}

    def ids(self):
        """Numbers of the jobs that were last submitted from the folders of runs."""
        found = [read_submission(path.parent) for path in self.folder.rglob("job.json")]
        return {submission.job_id for submission in found if submission is not None}

    def job(self, number=None, *states):
        """The number of the job of a run, once it is in one of these states."""
        path = self.path(number, "job.json")
        until(path.exists, PATIENCE_S, str(path))
        job = str(json.loads(path.read_text())["job_id"])
        if states:
            until(lambda: self.states().get(job) in states, PATIENCE_S, f"{'/'.join(states)} of {job}")
        return job

    def jobs_are(self, **wanted):
        """Wait until so many jobs are in these states, and none in another: RUNNING=2."""
        found = Counter()

        def come():
            found.clear()
            found.update(self.states().values())
            return found == wanted

        try:
            until(come, PATIENCE_S, f"jobs that are {wanted}")
        except ClusterError as error:
            raise ClusterError(f"{error}: they are {dict(found)}") from None

    def working(self, number=None, ranks=1):
        """Wait until all ranks of a run measure, and return the number of its job."""
        job = self.job(number, "RUNNING")
        folder = self.path(number, "")

        def measure():
            assert not (folder / "result.json").exists(), f"job {job} is over: {self.row(number).reason}"
            told = [read_progress(folder, rank) for rank in range(ranks)]
            return all(progress is not None and progress.phase == "measure" for progress in told)

        until(measure, PATIENCE_S, f"{ranks} ranks of job {job}")
        return job

    def clear(self, patience_s=0.0):
        """Cancel what is left to go on, have the nodes free for others, and return what was left."""

        def unfinished():
            return self.cluster.slurm("squeue", "--noheader", "--format=%i").split()

        with suppress(ClusterError):  # a job that is about to end takes a moment
            until(lambda: not unfinished(), patience_s, "the end of all jobs")
        if left := unfinished():
            self.cluster.slurm("scancel", *left)
        until(lambda: set(self.cluster.node_states()) == {"idle"}, PATIENCE_S, "idle nodes")
        return left
