"""Terminal output: a progress line for each run, tables at the end; plain lines where the output is not a terminal."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.machine.private_network import OPEN_PORT
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import RunSpec
from scalebench.core.sweep_file import SweepRecord, join_labels
from scalebench.core.untrusted import clean_text
from scalebench.measure.progress import TRIED, RankProgress
from scalebench.strategies.script.arguments import render_command
from scalebench.sweeps import estimate as estimates

if TYPE_CHECKING:
    from scalebench.analysis.attribution.causes import AttributedRun
    from scalebench.analysis.load import Survey
    from scalebench.runner.jobs.job import QueueState
    from scalebench.sweeps.cohort import CohortProgress
    from scalebench.sweeps.plan import SweepRun

MAX_BASELINE_COMMANDS = 3  # below a table
MAX_UNREADABLE_LINES = 10  # files named one by one
MAX_RUN_LABELS = 10  # of runs in a line
SLOW_STEP_S = 1.0  # from here on the length of a step is shown
MIN_SHOWN_LEFT_S = 1.0
IF_SLOW = ", longer where a step takes seconds"
FLAG_NOTES = {  # in a plan
    "oversubscribed": "oversubscribed",
    "hidden_gpus": "on the CPU: CUDA_VISIBLE_DEVICES hides the GPUs",
    "one_hot_targets": "loss mse, since the targets are floats; targets.argmax(1) gives cross_entropy",
}
REFRESHES_PER_S = 4  # of the progress line; rich's 12.5 cost as much CPU time as everything else in the parent
PLAIN_WIDTH = 80  # characters of a line in a file or a pipe, unless COLUMNS says another number


class _Output:
    """Standard output, which ends no run when it cannot be written, as on a full disk, or when the reader of a pipe or
    the terminal is gone. What follows is then dropped."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> None:
        self._try(sys.stdout.write, text)

    def flush(self) -> None:
        self._try(sys.stdout.flush)

    def _try(self, act: Callable[..., object], *words: str) -> None:
        try:
            act(*words)
        except OSError as error:
            line = f"standard output cannot be written: {error.strerror}; runs go on, and leave their results"
            process.print_error(line)
            process.drop_output()


class Console:
    """Prints everything that runs and sweeps print. Rich is imported at the first output."""

    def __init__(self, shows_tables: bool = True, are_runs: bool = True) -> None:
        """`shows_tables`: false for a caller that shows results itself; progress, outcomes and errors are printed.
        `are_runs`: false for a command that shows what is there."""
        self.shows_tables, self._are_runs = shows_tables, are_runs
        self._rich: Any = None
        self._status: Any = None  # rich's line that changes, while there is one

    @property
    def rich(self) -> Any:
        if self._rich is None:
            import rich.console

            settings: dict[str, Any] = {"color_system": None} if os.environ.get("NO_COLOR") else {}
            if rich.console.Console().is_jupyter:  # whose output stream says that it is a terminal
                settings |= {"force_terminal": False}
            if self._are_runs and sys.stdout is not None:  # a program can be started without one
                settings |= {"file": _Output()}
            self._rich = rich.console.Console(highlight=False, force_jupyter=False, **settings)
            if not self._rich.is_terminal:
                columns = os.environ.get("COLUMNS", "")
                self._rich.width = int(columns) if columns.isdecimal() and int(columns) else PLAIN_WIDTH
        return self._rich

    print_error = staticmethod(process.print_error)

    def print_line(self, text: str) -> None:
        self.rich.print(clean_text(text), markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def show_line(self, text: str, plain: str = "", is_debugged: bool = False) -> Iterator[Callable[[str, str], None]]:
        """Show a line while the block lasts, which the yielded function replaces by its first text. Where the output is
        no terminal, and while rank 0 is debugged there, `plain` is printed, and each second text that is new."""
        if self.rich.is_terminal and not is_debugged:
            with self.rich.status(escape_markup(text), refresh_per_second=REFRESHES_PER_S) as status:
                self._status = status
                try:
                    yield lambda text, _: status.update(escape_markup(text))
                finally:
                    self._status = None
            return
        if plain:
            self.print_line(plain)
        last = ""

        def print_change(_: str, text: str) -> None:
            nonlocal last
            if text not in ("", last):
                last = text
                self.print_line(text)

        yield print_change

    @contextlib.contextmanager
    def show_progress(
        self, spec: RunSpec, number: int, planned: int, time_left: Callable[[], str] = lambda: ""
    ) -> Iterator[Callable[[list[RankProgress]], None]]:
        """Show the progress line of one run; the yielded function updates it from the progress of the ranks.

        `time_left` formats how long the run's sweep will take from now on."""
        head = f"[{number}/{planned}] {spec.label}{format_repeat(spec)}"
        with self.show_line(head, f"{head} ...{time_left()}", spec.config.debug) as update:

            def look(ranks: list[RankProgress]) -> None:
                if ranks and ranks[0].phase == TRIED:
                    self.print_line(f"{head}: {ranks[0].metric}")
                else:
                    update(f"{head}  {describe_progress(ranks)}{time_left()}", "")

            yield look

    @contextlib.contextmanager
    def show_cohort(
        self, number: int, runs: int, planned: int, time_left: Callable[[], str] = lambda: ""
    ) -> Iterator[Callable[[CohortProgress], None]]:
        """Show the progress line of `runs` runs that take turns; the yielded function updates it. Where a line cannot
        be replaced, there is one for each start, and one after the last round."""
        head = f"[{number}-{number + runs - 1}/{planned}] {runs} runs in turns"
        with self.show_line(head, f"{head} ...{time_left()}") as update:

            def look(progress: CohortProgress) -> None:
                plain = f"{head}: {describe_start(progress)}" if progress.started and not progress.round else ""
                if progress.round and progress.seconds_left is None:
                    plain = f"{head}: {progress.round} rounds"
                update(f"{head}  {describe_cohort(progress)}{time_left()}", plain)

            yield look

    def print_outcome(
        self,
        result: Result,
        folder: Path,
        place: tuple[int, int] = (1, 1),
        settings: Sequence[str] = (),
        note: str = "",
    ) -> None:
        """Print one line for a run that has ended: its figure, or why it has none. `place` is its number in the sweep,
        and the number of all runs; `settings` tell it from others; `note` replaces the seconds that it took."""
        from scalebench.report.terminal import make_outcome_line

        head = f"[{place[0]}/{place[1]}]" if place[1] > 1 else ""
        self.print_part(make_outcome_line(result, folder, head, settings, note))

    def print_left_out(self, record: SweepRecord) -> None:
        """Print which runs a sweep had no time for, and how to continue it."""
        if not record.left_out:
            return
        self.print_line(
            f"{record.time_limit_text} left out {len(record.left_out)} of {len(record.runs)} runs: "
            f"{join_labels(record.left_out, MAX_RUN_LABELS)}; the same command with resume=true and more time adds them"
        )

    def print_table(
        self, paths: Sequence[str | os.PathLike[str]], baseline: str | None = None, wide: bool = False
    ) -> Survey:
        """Print the table of all readable runs at or below `paths`, repeats as one row, and a line on stderr for each
        file that cannot be read; with `wide`, all its columns. Return the runs. Raise InputError where none can be
        read, or `baseline` names no comparable run."""
        from scalebench.analysis.load import survey
        from scalebench.report.repeat_commands import make_baseline_commands
        from scalebench.report.terminal import make_overview

        runs = survey(paths, baseline)
        commands = make_baseline_commands(runs.pooled, runs.unreadable) if self.shows_tables else []
        self._print_unreadable(runs)
        if not self.shows_tables:
            return runs
        for part in make_overview(runs, self.rich.width, wide):
            self.print_part(part)
        for command in commands[:MAX_BASELINE_COMMANDS]:
            self.print_line(f"for the missing baselines: {command}")
        self.print_line(f"results: {', '.join(str(path) for path in paths)}")
        return runs

    def _print_unreadable(self, runs: Survey) -> None:
        for _, line in runs.unreadable[:MAX_UNREADABLE_LINES]:
            self.print_error(f"left out: {line}")
        if (more := len(runs.unreadable) - MAX_UNREADABLE_LINES) > 0:
            self.print_error(f"left out: {more} more that cannot be read")

    def print_run(self, paths: Sequence[str | os.PathLike[str]], number: int) -> None:
        """Print the details of the run with this number in the table of `print_table`; of several repeats, those of the
        first. Raise InputError where there is none."""
        from scalebench.analysis.load import survey
        from scalebench.report.sections.attribution import make_attributor
        from scalebench.report.terminal_table import RunTable

        runs = survey(paths)
        self._print_unreadable(runs)
        rows = RunTable(runs.pooled).rows
        if not 1 <= number <= len(rows):
            raise InputError(f"show: no run {number}; the table has runs 1 to {len(rows)}")
        folder, *others = runs.configurations.list_folders(rows[number - 1]["run_id"])
        result = read_result(folder / RESULT_FILE)
        if result.status != "ok":
            self.print_outcome(result, folder)
        self.print_details(folder, make_attributor(runs.frame))
        if others:
            self.print_line(f"{len(others)} more repeats: {', '.join(map(str, others))}")

    def print_details(self, folder: Path, attribute: Callable[[Result], AttributedRun | None] | None = None) -> None:
        """Print where the time of a successful run in `folder` went, and with `attribute` its lost efficiency.

        Raises InputError if its record cannot be read.
        """
        from scalebench.report.terminal import make_details

        result = read_result(folder / RESULT_FILE)
        case = None if attribute is None else attribute(result)
        for part in make_details(result, folder, case):
            self.print_part(part)

    def print_part(self, part: Any) -> None:
        """Print a line of text, or a renderable of rich, which may be wider than the terminal. Texts are broken
        between words in a terminal only: elsewhere a line is a text."""
        if isinstance(part, str):
            self.print_line(part)
        else:
            is_text = hasattr(part, "plain")
            self.rich.print(part, crop=False, soft_wrap=is_text and not self.rich.is_terminal)

    def print_plan(self, runs: Sequence[SweepRun], settings: Sequence[Sequence[str]] = ()) -> None:
        """Print the runs of a dry run, and how long all that are to be done may take. `settings` tell each from the
        others."""
        total_s, is_known = (0.0, 0.0), True
        for number, (run, own) in enumerate(zip(runs, settings or [()] * len(runs), strict=True), 1):
            spec, config = run.spec, run.spec.config
            note = " ".join([format_repeat(spec), *own]) + " (baseline, added)" * run.added
            note += "".join(f" [{text}]" for flag, text in FLAG_NOTES.items() if flag in spec.flags)
            head = f"[{number}/{len(runs)}] {spec.label}{note}"
            if not run.starts:
                self.print_line(f"{head}: {run.expect()[1]}")
                continue
            least_s, most_s = estimates.estimate_s(spec)
            total_s = (total_s[0] + least_s, total_s[1] + most_s)
            batch = f"batch {spec.batch_per_device} per device, {spec.global_batch} global"
            if config.measure.search == "max_batch":
                batch = f"the largest batch that fits, from {spec.batch_per_device} per device on"
            if config.script.path is not None and not spec.global_batch:
                batch = shlex.join(render_command(spec, run.folder))
            is_known = is_known and config.strategy.framework == "none"
            self.print_line(f"{head}: {batch}, {estimates.format_range(least_s, most_s)}")
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        time = f", about {estimates.format_range(*total_s)}" if any(run.starts for run in runs) else ""
        self.print_line(f"{count}{time}{'' if is_known else IF_SLOW}; nothing was started")

    def print_open_ports(self, specs: Sequence[RunSpec]) -> None:
        """Warn of runs that listen on all interfaces, which their flag says in the record."""
        open_strategies = [spec.config.strategy for spec in specs if OPEN_PORT in spec.flags]
        for strategy in {strategy.name: strategy for strategy in open_strategies}.values():
            harm = ", and lets everybody who reaches it read and write files as you" * (OPEN_PORT in strategy.options)
            self.print_line(f"{strategy.name} listens on all interfaces while it runs{harm} (docs/guides/cluster.md)")

    def confirm_cancel(self, jobs: int, ask: bool) -> bool:
        """Ask the user whether to cancel the jobs. The answer is yes without a terminal, and for Ctrl-C."""
        if not jobs or not ask or not (sys.stdin.isatty() and self.rich.is_terminal):
            return True
        question = f"cancel {'the job' if jobs == 1 else f'all {jobs} jobs'}? Otherwise they keep running [Y/n] "
        if self._status is not None:
            self._status.stop()  # it would write over the question
        try:
            return input(question).strip().lower() not in ("n", "no")
        except (KeyboardInterrupt, EOFError):
            return True
        finally:
            if self._status is not None:
                self._status.start()


def format_repeat(spec: RunSpec) -> str:
    """Return ` repeat=2` where runs are repeated, since their labels would be equal without it."""
    return f" repeat={spec.config.repeat}" if spec.repeats > 1 else ""


def escape_markup(text: str) -> str:
    """Return a line, such as a path or a name, without effects on a terminal: rich takes brackets for markup."""
    from rich.markup import escape as escaped

    return escaped(clean_text(text))


def describe_progress(ranks: list[RankProgress], now_s: float | None = None) -> str:
    """Describe phase, throughput so far, slow steps, and the time left of the phase; by rank 0."""
    if not ranks:
        return "starting"
    first = min(ranks, key=lambda progress: progress.rank)
    since_s = (time.time() if now_s is None else now_s) - first.at_s
    parts = [first.phase]
    if first.phase == "warmup" and not first.steps and since_s >= SLOW_STEP_S:
        parts.append(f"first step, {since_s:.0f} s so far")
    if first.epoch is not None:
        parts.append(f"epoch {first.epoch:.1f}")
    if first.metric is not None:
        parts.append(first.metric)
    if first.samples_per_s is not None:
        # Among the stages of one model only the last counts samples, for all of them.
        rate = first.samples_per_s * len(ranks) or max(p.samples_per_s or 0.0 for p in ranks)
        parts.append(f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s")
    left_s = 0.0 if first.limit_s is None or not first.steps else first.limit_s - first.elapsed_s - since_s
    left = f"at most {estimates.format_about(left_s).removeprefix('about ')} left" if left_s >= MIN_SHOWN_LEFT_S else ""
    if first.step_s is not None and first.step_s >= SLOW_STEP_S:
        left = f"a step takes {first.step_s:.{0 if first.step_s >= 10 else 1}f} s"
    return ", ".join([*parts, *filter(None, [left])])


def describe_cohort(progress: CohortProgress) -> str:
    """Return a line such as `round 12, at most 35 s left`."""
    if not progress.round or progress.seconds_left is None:
        start = "" if progress.round else f"{describe_start(progress)}; "
        return f"{start}{progress.label}: {describe_progress(progress.ranks)}"
    left = f", at most {progress.seconds_left:.0f} s left" if progress.seconds_left >= MIN_SHOWN_LEFT_S else ""
    return f"round {progress.round}{left}"


def describe_start(progress: CohortProgress) -> str:
    """Return `3 of 8 started; first figures in about 20 s`, without the time until one run is warm."""
    left_s = progress.first_figures_s
    figures = "" if left_s is None else f"; first figures in {estimates.format_about(left_s)}"
    return f"{progress.started} of {progress.runs} started{figures}"


def describe_queue(queue: QueueState) -> str:
    """Return a line such as `4 of 10 runs over, 2 running, 3 pending (Priority), 1 not submitted yet`."""
    running = len(queue.runs)
    runs = queue.over + running + queue.pending + queue.waiting
    reason = f" ({queue.reason})" if queue.reason else ""
    parts = [
        f"{queue.over} of {runs} run{'' if runs == 1 else 's'} over",
        f"{running} running" if running else "",
        f"{queue.pending} pending{reason}" if queue.pending else "",
        f"{queue.waiting} not submitted yet{f' ({queue.limit})' if queue.limit else ''}" if queue.waiting else "",
        f"no answer from SLURM: {queue.error}" if queue.error else "",
    ]
    return ", ".join(filter(None, parts))
