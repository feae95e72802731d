"""What people see while runs go on: one progress line a run, plain lines where the output is no terminal. Layer 3."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import RunSpec
from scalebench.core.sweep_file import SweepRecord, labels
from scalebench.measure.progress import Progress, read_progress
from scalebench.sweeps.time_estimate import between, estimate_s

if TYPE_CHECKING:
    from scalebench.analysis.load import Survey
    from scalebench.report.sections.attribution import AttributionRecords
    from scalebench.runner.jobs import Queue

MAX_COMMANDS = 3  # below a table
MAX_UNREADABLE = 10  # files named one by one
MAX_LABELS = 10  # of runs in a line
MAX_RUNS_SHOWN = 2  # running jobs whose phase is shown
MAX_RANKS_READ = 8  # of a running job
PLAIN_WIDTH = 200  # of a file or a pipe, where nobody's window is the limit


class Console:
    """Everything scalebench prints goes through here; rich is imported when it first does."""

    def __init__(self) -> None:
        self._rich: Any = None
        self._following: Any = None  # the progress line of jobs, while there is one

    @property
    def rich(self) -> Any:
        if self._rich is None:
            import rich.console

            self._rich = rich.console.Console(highlight=False)
            if not self._rich.is_terminal:
                self._rich.width = PLAIN_WIDTH
        return self._rich

    def error(self, line: str) -> None:
        print(f"scalebench: {' '.join(line.split())}", file=sys.stderr)

    def line(self, text: str) -> None:
        self.rich.print(text, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A line while something is made that may take a while."""
        if self.rich.is_terminal:
            with self.rich.status(escape(what)):
                yield
        else:
            yield

    @contextlib.contextmanager
    def progress(
        self, spec: RunSpec, number: int, planned: int, left: Callable[[], str] = lambda: ""
    ) -> Iterator[Callable[[list[Progress]], None]]:
        """The progress line of one run; yields what to call at each look at its ranks. `left` tells how long the sweep
        that it is part of will take from now on."""
        head = f"[{number}/{planned}] {spec.label}{repeat_of(spec)}"
        if spec.config.debug or not self.rich.is_terminal:
            self.line(f"{head} ...{_in_brackets(left())}")
            yield lambda ranks: None
            return
        with self.rich.status(escape(head)) as status:
            yield lambda ranks: status.update(escape(f"{head}  {describe(ranks)}{_in_brackets(left())}"))

    @contextlib.contextmanager
    def cooling_down(self, seconds: float) -> Iterator[None]:
        """The progress line of a pause between two runs."""
        line = f"cooling down for {seconds:g} s"
        if self.rich.is_terminal:
            with self.rich.status(line):
                yield
        else:
            self.line(f"{line} ...")
            yield

    def ended(self, result: Result, folder: Path) -> None:
        """One line for a run that is not ok, or that searched for its largest batch; others speak through the table."""
        if result.quality.max_batch is not None and result.status == "ok":
            from scalebench.report.terminal import describe_largest_batch

            return self.line(describe_largest_batch(result))
        if result.status == "ok":
            return None
        log = f" (log: {folder / result.log})" if result.log is not None else ""
        self.line(f"{result.scale.strategy} gpus={result.scale.gpus}: {result.status}: {result.reason}{log}")

    def skipped(self, result: Result, number: int, planned: int) -> None:
        self.line(f"[{number}/{planned}] {result.scale.strategy} gpus={result.scale.gpus}: done before, kept")

    def left_out(self, record: SweepRecord) -> None:
        """What a sweep had no time for, and how to go on."""
        if not record.left_out:
            return
        self.line(
            f"sweep.max_minutes={record.max_minutes:g} left out {len(record.left_out)} of {len(record.runs)} runs: "
            f"{labels(record.left_out, MAX_LABELS)}; the same command with resume=true and more time adds them"
        )

    def table(self, paths: Sequence[str | os.PathLike[str]], baseline: str | None = None) -> Survey:
        """The table of all runs at or below `paths` that can be read, repeats as one row; a line on stderr for each
        file that cannot. InputError where none can be read, or `baseline` names no run to compare them with."""
        from scalebench.analysis.load import survey
        from scalebench.report.repeat_commands import make_baseline_commands
        from scalebench.report.terminal import make_overview

        found = survey(paths, baseline)
        for _, line in found.unreadable[:MAX_UNREADABLE]:
            self.error(f"left out: {line}")
        if (more := len(found.unreadable) - MAX_UNREADABLE) > 0:
            self.error(f"left out: {more} more that cannot be read")
        for part in make_overview(found):
            self._part(part)
        for command in make_baseline_commands(found.pooled)[:MAX_COMMANDS]:
            self.line(f"for the missing baselines: {command}")
        self.line(f"results: {', '.join(str(path) for path in paths)}")
        return found

    def details(self, folder: Path, records: AttributionRecords | None = None) -> None:
        """Print where the time of a successful run in `folder` went, and with `records` its lost efficiency.

        Raises InputError if its record cannot be read.
        """
        from scalebench.report.terminal import make_details

        result = read_result(folder / RESULT_FILE)
        case = records.attribute(result) if records is not None and result.status == "ok" else None
        for part in make_details(result, folder, case):
            self._part(part)

    def _part(self, part: Any) -> None:
        """A line, or what rich draws."""
        if isinstance(part, str):
            self.line(part)
        else:
            self.rich.print(part)

    def plan(self, runs: Sequence[tuple[RunSpec, bool]]) -> None:
        """What a dry run lists: each run, and how long all may take."""
        low_s = high_s = pause_s = 0.0
        warm = False
        several = len({spec.config.model.name for spec, _ in runs}) > 1
        for number, (spec, added) in enumerate(runs, 1):
            note = repeat_of(spec) + (f" model={spec.config.model.name}" if several else "")
            note += " (baseline, added)" if added else ""
            note += " [oversubscribed]" if "oversubscribed" in spec.flags else ""
            if not spec.starts:
                told = f"unsupported: {spec.unsupported}" if spec.broken is None else f"will fail: {spec.broken}"
                self.line(f"[{number}/{len(runs)}] {spec.label}{note}: {told}")
                continue
            low, high = estimate_s(spec)
            low_s, high_s = low_s + low, high_s + high
            pause_s, warm = pause_s + warm * spec.config.measure.cool_down_s, True
            batch = f"batch {spec.batch_per_device} per device, {spec.global_batch} global"
            if spec.config.measure.search == "max_batch":
                batch = f"the largest batch that fits, from {spec.batch_per_device} per device on"
            self.line(f"[{number}/{len(runs)}] {spec.label}{note}: {batch}, {between(low, high)}")
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        pauses = f", {pause_s:.0f} s of them cooling down" if pause_s else ""
        self.line(f"{count}, about {between(low_s + pause_s, high_s + pause_s)}{pauses}; nothing was started")

    @contextlib.contextmanager
    def following(self) -> Iterator[Callable[[Queue], None]]:
        """The progress line of runs that a scheduler has; yields what to call when something has changed."""
        if not self.rich.is_terminal:
            said: list[str] = []

            def tell(now: Queue) -> None:
                line = queue_counts(now)
                if said[-1:] != [line]:
                    said[:] = [line]
                    self.line(line)

            yield tell
            return
        with self.rich.status("submitting") as status:
            self._following = status
            try:
                yield lambda now: status.update(escape(queue_line(now)))
            finally:
                self._following = None

    def shall_cancel(self, jobs: int, ask: bool) -> bool:
        """Whether the jobs shall be cancelled. Where there is nobody to ask, or Ctrl-C is the answer: yes."""
        if not jobs or not ask or not (sys.stdin.isatty() and self.rich.is_terminal):
            return True
        question = f"cancel {'the job' if jobs == 1 else f'all {jobs} jobs'}? Otherwise they go on without [Y/n] "
        if self._following is not None:
            self._following.stop()  # it would write over the question
        try:
            return _answer(question).strip().lower() not in ("n", "no")
        except KeyboardInterrupt:
            return True
        finally:
            if self._following is not None:
                self._following.start()

    def script(self, spec: RunSpec, folder: Path) -> None:
        """What would be submitted of a run, and what then starts its ranks."""
        from scalebench.slurm import resources, submit

        self.line(f"\n{spec.label}{repeat_of(spec)}, submitted with sbatch:\n")
        self.line(submit.text(spec, folder))
        self.line("ranks, from within the job:\n")
        self.line(f"{shlex.join(resources.rank_command(spec, folder))}\n")


def _answer(question: str) -> str:
    """What somebody types, up to the end of the line; nothing where they hang up."""
    print(question, end="", flush=True)
    # Not input(): a Ctrl-C between its question and its waiting would be heard at the next key only.
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        pass
    return sys.stdin.readline()


def _in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def repeat_of(spec: RunSpec) -> str:
    """` repeat=2` where runs are repeated, and would look alike without it."""
    return f" repeat={spec.config.repeat}" if spec.config.measure.repeats > 1 else ""


def escape(text: str) -> str:
    """Rich takes brackets for markup, and a path or a name may hold some."""
    from rich.markup import escape as escaped

    return escaped(text)


def describe(ranks: list[Progress]) -> str:
    """Phase, throughput so far and time left, of rank 0."""
    if not ranks:
        return "starting"
    first = min(ranks, key=lambda p: p.rank)
    words = [first.phase]
    if first.epoch is not None:
        words.append(f"epoch {first.epoch:.1f}")
    if first.metric is not None:
        words.append(first.metric)
    if first.samples_per_s is not None:
        # Of the stages of one model only the last counts samples, for all of them.
        rate = first.samples_per_s * len(ranks) or max(p.samples_per_s or 0.0 for p in ranks)
        words.append(f"{rate:,.0f} samples/s")
    if first.limit_s is not None:
        words.append(f"at most {max(0.0, first.limit_s - first.elapsed_s):.0f} s left")
    return ", ".join(words)


def queue_counts(queue: Queue) -> str:
    """`4 of 10 runs over, 2 running, 3 pending (Priority), 1 not submitted yet`"""
    runs = queue.over + queue.running + queue.pending + queue.waiting
    reason = f" ({queue.reason})" if queue.reason else ""
    parts = [
        f"{queue.over} of {runs} run{'' if runs == 1 else 's'} over",
        f"{queue.running} running" if queue.running else "",
        f"{queue.pending} pending{reason}" if queue.pending else "",
        f"{queue.waiting} not submitted yet" if queue.waiting else "",
        f"nothing heard of SLURM: {queue.trouble}" if queue.trouble else "",
    ]
    return ", ".join(filter(None, parts))


def queue_line(queue: Queue) -> str:
    """The counts of a queue, and the phases of the first running jobs."""
    phases = []
    for run in queue.runs[:MAX_RUNS_SHOWN]:
        ranks = range(min(run.spec.processes, MAX_RANKS_READ))
        first = next((read for rank in ranks if (read := read_progress(run.folder, rank)) is not None), None)
        if first is not None:
            phases.append(f"{run.spec.label}: {first.phase}")
    return "; ".join([queue_counts(queue), *phases])
