"""A scheduler whose jobs do what a test tells them, by a clock that only waiting moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalebench.core.result import Result, write_result
from scalebench.core.run_folder import JOB_LOG
from scalebench.core.spec import RunSpec
from scalebench.runner.jobs import Cluster, JobRequest, Queue
from scalebench.slurm.commands import SlurmError, Unreachable
from scalebench.slurm.job_states import JobState
from scalebench.slurm.submit import Submission, write_submission
from tests.builders.runs import record, simulated_spec

BEGUN_S = 1_700_000_000.0  # of the scheduler's clock, which is not that of this host
PATIENCE_S = 3 * 3600.0

Happening = Callable[["Scheduler", str, Path], None]
Play = Sequence[tuple[float, Happening]]  # seconds after submission, and what happens then


def state(word: str, reason: str | None = None, nodes: str | None = None) -> Happening:
    """The scheduler says so from now on; what it said before of nodes and times stays."""

    def happens(scheduler: Scheduler, job_id: str, folder: Path) -> None:
        before = scheduler.states[job_id]
        begun = scheduler.now_s + BEGUN_S if nodes is not None else before.started_at_s
        scheduler.states[job_id] = replace(
            before, state=word, reason=reason, node_list=nodes or before.node_list, started_at_s=begun
        )

    return happens


def forgotten(scheduler: Scheduler, job_id: str, folder: Path) -> None:
    del scheduler.states[job_id]


def leaves(name: str, text: str = "") -> Happening:
    return lambda scheduler, job_id, folder: (folder / name).write_text(text) and None


def row(status: str = "ok", reason: str | None = None, **changes: Any) -> Happening:
    def happens(scheduler: Scheduler, job_id: str, folder: Path) -> None:
        write_result(record(status=status, reason=reason, run_id=f"of job {job_id}", **changes), folder)

    return happens


def runs(*then: tuple[float, Happening], nodes: str = "h1") -> Play:
    """A job that waits for 8 s, starts on `nodes`, and has its log there."""
    start = (8.0, state("RUNNING", nodes=nodes)), (8.0, leaves(JOB_LOG, "begun\n"))
    return [*start, *then]


GOOD = runs((30.0, row()), (30.5, state("COMPLETED")))


@dataclass
class Scheduler:
    """Slurm, its watcher and its sbatch in one."""

    plays: list[Play | BaseException] = field(default_factory=list)  # of each submission, in order
    deaf: set[str] = field(default_factory=set)  # commands that get no answer
    bin: str | None = None
    now_s: float = 0.0
    queries: int = 0
    interval_s: float = 5.0
    submitted: list[Path] = field(default_factory=list)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    states: dict[str, JobState] = field(default_factory=dict)
    looks_s: list[float] = field(default_factory=list)
    _to_come: list[tuple[float, Happening, str, Path]] = field(default_factory=list)
    _known: dict[str, JobState] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < PATIENCE_S, "it is waited for for ever"
        due = [event for event in self._to_come if event[0] <= self.now_s]
        self._to_come = [event for event in self._to_come if event[0] > self.now_s]
        for _, happens, job_id, folder in due:
            happens(self, job_id, folder)

    def submit(self, spec: RunSpec, folder: Path) -> Submission:
        play = self.plays.pop(0)
        if isinstance(play, BaseException):
            raise play
        self.submitted.append(folder)
        made = self.start(play, folder)
        write_submission(made, folder)
        return made

    def start(self, play: Play, folder: Path) -> Submission:
        job_id = str(100 + len(self.submitted))
        pending = JobState(job_id, "PENDING", "Priority", submitted_at_s=self.now_s + BEGUN_S)
        self.states[job_id] = pending
        self._to_come += [(self.now_s + after_s, happens, job_id, folder) for after_s, happens in play]
        return Submission(job_id, self.now_s + BEGUN_S, "main")

    def run(self, name: str, *words: str, limit_s: float = 20.0) -> str:
        self.commands.append((name, *words))
        if name in self.deaf:
            raise Unreachable(f"{name}: Unable to contact slurm controller (connect failure)")
        if name == "scancel":
            for job_id in words:
                self.end(job_id, "CANCELLED")
        return "h1\nh2\n" if words[:2] == ("show", "hostnames") else ""

    def end(self, job_id: str, word: str) -> None:
        """At once, without whatever it would have done."""
        self._to_come = [event for event in self._to_come if event[2] != job_id]
        self.states[job_id] = replace(self.states[job_id], state=word)

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        if not self.looks_s or self.now_s - self.looks_s[-1] >= self.interval_s:
            self.looks_s.append(self.now_s)
            self.queries += 1
            if "squeue" in self.deaf:
                raise SlurmError("squeue: Unable to contact slurm controller (connect failure)")
            self._known = dict(self.states)
        return {job_id: self._known[job_id] for job_id in job_ids if job_id in self._known}


@dataclass
class Sweep:
    """Runs in folders of their own, followed to their ends."""

    folder: Path
    scheduler: Scheduler
    max_jobs: int | None = None
    told: list[Queue] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.scheduler
        self.cluster = Cluster(
            s,
            self.max_jobs,
            self.told.append,
            submit=s.submit,
            watcher=s,
            clock=s.clock,
            pause=s.pause,  # type: ignore
        )

    def asked(self, count: int | None = None, gpus: int = 1) -> list[JobRequest]:
        count = len(self.scheduler.plays) if count is None else count
        return [
            JobRequest(number, simulated_spec(gpus, repeat=number), self.folder / str(number))
            for number in range(count)
        ]

    def ends(self, asked: list[JobRequest] | None = None) -> list[tuple[int, Result]]:
        asked = self.asked() if asked is None else asked
        return [(each.number, result) for each, result in self.cluster.follow(asked)]


def end_of(folder: Path, play: Play, gpus: int = 1) -> Result:
    """Of the only run of a sweep."""
    sweep = Sweep(folder, Scheduler([play]))
    ((_, result),) = sweep.ends(sweep.asked(gpus=gpus))
    return result
