"""Asks SLURM how jobs stand, seldom and for all of them at once. Layer 2."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from scalebench.slurm import states
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.states import JobState, over

SLOWEST_S = 60.0  # between two questions to a controller that does not answer
# Answers about a job that the queue has forgotten which may be behind: accounting hears of its end a little later.
LATE_ANSWERS = 12
NO_ACCOUNTING = "accounting storage is disabled"


class Watcher:
    """Remembers what it was told, and how a job ended for good.

    squeue knows the jobs that wait or run and, for some minutes, those that are over. Of those that it has forgotten
    sacct tells, and scontrol where there is no accounting.
    """

    def __init__(self, slurm: Slurm, interval_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.queries = 0  # commands that were run
        self._slurm, self._interval_s, self._clock = slurm, interval_s, clock
        self._ask_at_s = float("-inf")
        self._failures = 0  # of the queue's command, one after the other
        self._known: dict[str, JobState] = {}
        self._lost: dict[str, int] = {}  # jobs that the queue has forgotten: answers that did not tell their end
        self._asked_queue = False  # at the last question
        self._accounting = slurm.has("sacct")

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """The state of each job that SLURM knows of.

        It is asked at most once in `interval_s`, otherwise the answer is what is known. One that nobody knows any more
        is left out. SlurmError where the controller does not answer, which then is asked less often.
        """
        open_ids = [job_id for job_id in job_ids if job_id not in self._known or not over(self._known[job_id])]
        if open_ids and self._clock() >= self._ask_at_s:
            try:
                self._ask(open_ids)
            finally:
                pause_s = min(self._interval_s * 2**self._failures, max(SLOWEST_S, self._interval_s))
                self._ask_at_s = self._clock() + pause_s
        return {job_id: self._known[job_id] for job_id in job_ids if job_id in self._known}

    def _ask(self, open_ids: Sequence[str]) -> None:
        """One question: of the queue, or in turn with that about those it has forgotten."""
        lost = [job_id for job_id in open_ids if job_id in self._lost]
        self._asked_queue = not lost or not self._asked_queue
        if self._asked_queue:
            self._ask_queue(open_ids)
            if self._interval_s > 0:
                return
            lost = [job_id for job_id in open_ids if job_id in self._lost]  # nobody will come back for them
        if lost:
            self._ask_about(lost)

    def _ask_queue(self, open_ids: Sequence[str]) -> None:
        try:
            found = self._queue() if self._slurm.has("squeue") else self._controller()
        except SlurmError:
            self._failures += 1
            raise
        self._failures = 0
        for job_id in open_ids:
            if job_id in found:
                self._known[job_id] = found[job_id]
                self._lost.pop(job_id, None)
            else:
                self._lost.setdefault(job_id, 0)

    def _ask_about(self, lost: Sequence[str]) -> None:
        """Jobs that the queue has forgotten."""
        try:
            found = self._accounts(lost) if self._accounting else self._controller()
        except SlurmError as error:
            if self._accounting and NO_ACCOUNTING in str(error):
                self._accounting = False  # which nobody will change while a sweep runs, and nobody had to be asked for
                self._ask_about(lost)
                return
            found = {}
        for job_id in lost:
            if job_id in found:
                self._known[job_id] = found[job_id]
            self._lost[job_id] += 1
            # The controller is never behind: what it does not know is gone.
            if self._lost[job_id] >= (LATE_ANSWERS if self._accounting else 2) and not self._over(job_id):
                self._known.pop(job_id, None)

    def _over(self, job_id: str) -> bool:
        return job_id in self._known and over(self._known[job_id])

    def _queue(self) -> dict[str, JobState]:
        # Of a user rather than of jobs: an id that it has forgotten would be an error.
        words = ["--noheader", "--all", "--states=all", f"--user={os.getuid()}", f"--format={states.SQUEUE_FORMAT}"]
        return states.parse_squeue(self._run("squeue", *words))

    def _accounts(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        words = ["--allocations", "--noheader", "--parsable2", f"--format={states.SACCT_FORMAT}"]
        return states.parse_sacct(self._run("sacct", *words, f"--jobs={','.join(job_ids)}"))

    def _controller(self) -> dict[str, JobState]:
        return states.parse_scontrol(self._run("scontrol", "--oneliner", "show", "job"))

    def _run(self, name: str, *words: str) -> str:
        self.queries += 1
        return self._slurm.run(name, *words)
