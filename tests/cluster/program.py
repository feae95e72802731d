"""The program as its users start it, on a test cluster, with commands of SLURM that log each call."""

import shlex
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass

from scalebench.core.result import read_result
from scalebench.measure.progress import read_progress
from scalebench.slurm.submit import read_submission
from tests.cluster.cluster import ROOT
from tests.cluster.processes import until
from tests.cluster.settings import ClusterError

LIMIT_S = 500.0  # of a sweep
PATIENCE_S = 120.0  # with what SLURM, or a job, gets round to sooner or later
# Over in no time: nothing is asked but that it runs. The loss of each update is in the record.
TINY = (
    "hardware=testcluster hardware.max_jobs=null dataset.size=1000 measure=quick measure.warmup_steps=5 "
    "measure.warmup_max_s=0.2 measure.block_s=0.0001 measure.min_s=0 measure.max_s=0.2 measure.evaluate=false "
    "measure.probes=false measure.monitor=false"
).split()
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
        """Of the command line; `text` is cut into words as a shell does it."""
        where = [f"hydra.sweep.dir={self.sweep}", f"hardware.slurm.bin={self.bin}"]
        told = [*TINY, f"sweep.report={str(report).lower()}", *where, *shlex.split(text), *more]
        return [sys.executable, "-m", "scalebench", *(["--multirun", "measure.repeats=1"] if several else []), *told]

    def run(self, text, *more, report=False):
        begin_s = time.monotonic()
        with self.started(text, *more, report=report) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return Done(process.returncode, out, err, time.monotonic() - begin_s)

    @contextmanager
    def started(self, text, *more, report=False, several=True, before=()):
        """While it goes on. Nobody sits at a terminal. What is left of it at the end is killed. `before` are words
        that start it, such as nohup."""
        process = subprocess.Popen(
            [*before, *self.words(text, *more, report=report, several=several)], cwd=self.folder,
            env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def rows(self):
        """By the number of the run in the sweep."""
        found = {int(path.parent.name): path for path in self.sweep.glob("*/result.json")}
        return {number: read_result(found[number]) for number in sorted(found)}

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

    def measuring(self, number):
        """Wait until that run has come so far."""

        def come():
            progress = read_progress(self.sweep / str(number), 0)
            return progress is not None and progress.phase == "measure"

        until(come, PATIENCE_S, f"run {number}'s phase of measuring")

    def clear(self):
        """Cancel what was left to go on, and have the nodes free for others."""
        unfinished = [job for job, state in self.states().items() if state in ("PENDING", "RUNNING")]
        if unfinished:
            self.cluster.slurm("scancel", *unfinished)
        asked = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
        until(lambda: set(self.cluster.slurm(*asked).split()) == {"idle"}, PATIENCE_S, "idle nodes")
