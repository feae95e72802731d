"""A scheduler whose jobs follow a script of a test, on a clock that only waiting advances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalebench.cluster.commands import SlurmUnreachable
from scalebench.cluster.job_states import JobState
from scalebench.cluster.submit import Submission
from scalebench.core.result import write_result
from scalebench.core.run_folder import JOB_LOG
from scalebench.runner.jobs.follow import JobFollower
from scalebench.runner.jobs.job import PlannedJob, QueueState
from scalebench.runner.parent import RunRequest
from tests.builders.runs import record, simulated_spec

BEGUN_S = 1_700_000_000.0  # of the scheduler's clock, which is not that of this host
MAX_WAIT_S = 3 * 3600.0

Event = Callable[["Scheduler", str, Path], None]
Script = Sequence[tuple[float, Event]]  # (seconds after submission, event)


def state(name, reason=None, nodes=None):
    """Return an event that changes the state of a job; nodes and times of before stay."""

    def change(scheduler, job_id, folder):
        before = scheduler.states[job_id]
        begun = scheduler.now_s + BEGUN_S if nodes is not None else before.started_at_s
        scheduler.states[job_id] = replace(
            before, state=name, reason=reason, node_list=nodes or before.node_list, started_at_s=begun
        )

    return change


def forgotten(scheduler, job_id, folder):
    """Drop a job from the answers of the scheduler."""
    del scheduler.states[job_id]


def leaves(name, text=""):
    return lambda scheduler, job_id, folder: (folder / name).write_text(text) and None


def leaves_result(status="ok", reason=None, **changes):
    def change(scheduler, job_id, folder):
        write_result(record(status=status, reason=reason, run_id=f"of job {job_id}", **changes), folder)

    return change


def runs(*then, nodes="h1"):
    """A job that waits for 8 s, starts on `nodes`, and has its log there."""
    start = (8.0, state("RUNNING", nodes=nodes)), (8.0, leaves(JOB_LOG, "begun\n"))
    return [*start, *then]


SUCCESSFUL = runs((30.0, leaves_result()), (30.5, state("COMPLETED")))


@dataclass
class Scheduler:
    """A stand-in for Slurm and sbatch."""

    scripts: list[Script | BaseException] = field(default_factory=list)  # of each submission, in order
    unreachable: set[str] = field(default_factory=set)  # commands that get no answer
    bin: str | None = None
    now_s: float = 0.0
    submitted: list[Path] = field(default_factory=list)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    states: dict[str, JobState] = field(default_factory=dict)
    looks_s: list[float] = field(default_factory=list)
    _to_come: list[tuple[float, Event, str, Path]] = field(default_factory=list)

    def clock(self):
        return self.now_s

    def pause(self, seconds):
        self.now_s += seconds
        assert self.now_s < MAX_WAIT_S, "the follower waits for ever"
        due = [each for each in self._to_come if each[0] <= self.now_s]
        self._to_come = [each for each in self._to_come if each[0] > self.now_s]
        for _, event, job_id, folder in due:
            event(self, job_id, folder)

    def submit(self, specs, folder):
        script = self.scripts.pop(0)
        if isinstance(script, BaseException):
            raise script
        self.submitted.append(folder)
        return self.start(script, folder)

    def start(self, script, folder):
        job_id = str(100 + len(self.submitted))
        pending = JobState(job_id, "PENDING", "Priority", submitted_at_s=self.now_s + BEGUN_S)
        self.states[job_id] = pending
        self._to_come += [(self.now_s + after_s, event, job_id, folder) for after_s, event in script]
        return Submission(job_id, self.now_s + BEGUN_S, "main")

    def run(self, name, *arguments):
        if name not in ("squeue", "sacct"):
            self.commands.append((name, *arguments))
        if name in self.unreachable:
            raise SlurmUnreachable(f"{name}: Unable to contact slurm controller (connect failure)")
        if name == "scancel":
            for job_id in arguments:
                self.end(job_id, "CANCELLED")
        if name == "squeue":
            return self.queue()
        return "h1\nh2\n" if arguments[:2] == ("show", "hostnames") else ""

    def end(self, job_id, name):
        """End a job at once, without the rest of its script."""
        self._to_come = [each for each in self._to_come if each[2] != job_id]
        self.states[job_id] = replace(self.states[job_id], state=name)

    def queue(self):
        """Return what squeue prints."""
        self.looks_s.append(self.now_s)
        jobs = self.states.values()
        fields = [(s.job_id, s.state, s.node_list, s.started_at_s, s.submitted_at_s, s.limit, s.reason) for s in jobs]
        as_text = [[str(round(each) if isinstance(each, float) else each) for each in line] for line in fields]
        return "".join("|".join(line) + "\n" for line in as_text)


@dataclass
class Sweep:
    """Runs in their folders, followed to their ends."""

    folder: Path
    scheduler: Scheduler
    max_jobs: int | None = None
    states_reported: list[QueueState] = field(default_factory=list)

    def __post_init__(self):
        s = self.scheduler
        self.follower = JobFollower(
            s, self.max_jobs, self.states_reported.append, submit=s.submit, clock=s.clock, pause=s.pause
        )

    def requests(self, count=None, gpus=1):
        count = len(self.scheduler.scripts) if count is None else count
        return [
            RunRequest(number, simulated_spec(gpus, repeat=number), self.folder / str(number))
            for number in range(count)
        ]

    def ends(self, requests=None, adopted=()):
        requests = self.requests() if requests is None else requests
        return [(each.number, result) for each, result in self.follow(requests, adopted)]

    def follow(self, requests, adopted=()):
        """Follow these runs, each a job of its own, and those that were submitted before."""
        return self.follower.follow([PlannedJob(each.folder, [[each]]) for each in requests], adopted)


def end_of(folder, script=None, gpus=1, scheduler=None):
    """Return the result of a sweep with a single run."""
    sweep = Sweep(folder, scheduler or Scheduler([script]))
    ((_, result),) = sweep.ends(sweep.requests(gpus=gpus))
    return result
