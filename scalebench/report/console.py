"""What people see while runs go on: one progress line a run, plain lines where the output is no terminal. Layer 3."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scalebench.measure.progress import Progress
from scalebench.results import RESULT_FILE, Result, read_result
from scalebench.spec import RunSpec

MOST_COMMANDS = 3  # below a table
PLAIN_WIDTH = 200  # of a file or a pipe, where nobody's window is the limit
SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBES = 3.5  # times measure.probe_s


class Console:
    """Everything scalebench prints goes through here; rich is imported when it first does."""

    def __init__(self) -> None:
        self._rich: Any = None

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
    def progress(self, spec: RunSpec, number: int, planned: int) -> Iterator[Callable[[list[Progress]], None]]:
        """The progress line of one run; yields what to call at each look at its ranks."""
        head = f"[{number}/{planned}] {spec.label}{repeat_of(spec)}"
        if spec.config.debug or not self.rich.is_terminal:
            self.line(f"{head} ...")
            yield lambda ranks: None
            return
        with self.rich.status(escape(head)) as status:
            yield lambda ranks: status.update(escape(f"{head}  {describe(ranks)}"))

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
        """One line for a run that is not ok; a good one speaks through the table."""
        if result.status == "ok":
            return
        log = f" (log: {folder / result.log})" if result.log is not None else ""
        self.line(f"{result.scale.strategy} gpus={result.scale.gpus}: {result.status}: {result.reason}{log}")

    def skipped(self, result: Result, number: int, planned: int) -> None:
        self.line(f"[{number}/{planned}] {result.scale.strategy} gpus={result.scale.gpus}: done before, kept")

    def table(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        """The table of all runs at or below `paths`, repeats as one row. InputError for none, or an unreadable one."""
        from scalebench.frame import read
        from scalebench.pooling import pool
        from scalebench.report.tables import baseline_commands, summary

        results, folders = read(paths)
        frame = pool(results, folders)
        self.rich.print(summary(frame))
        self._on_request(results)
        for command in baseline_commands(frame)[:MOST_COMMANDS]:
            self.line(f"for the missing baselines: {command}")
        self.line(f"results: {', '.join(str(path) for path in paths)}")

    def _on_request(self, results: Sequence[Result]) -> None:
        """Collective operations and bandwidths, where runs were asked to measure them."""
        probes = [rank.probes for result in results for rank in result.ranks if rank.probes is not None]
        if not any(one.collectives or one.bandwidth for one in probes):
            return
        from scalebench import crossover, transfers
        from scalebench.report import collectives

        operations, moved = crossover.collectives(results), transfers.transfers(results)
        for table in collectives.tables(operations) if len(operations) else []:
            self.rich.print(table)
        for sentence in collectives.sentences(operations) if len(operations) else []:
            self.line(sentence)
        if len(moved):
            self.rich.print(collectives.bandwidth_table(moved))

    def details(self, folder: Path) -> None:
        """Where the time of the run in `folder` went; nothing of one that is not ok. InputError for no whole record."""
        from scalebench.report.details import panel

        for part in panel(read_result(folder / RESULT_FILE), folder):
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
            if spec.unsupported is not None:
                self.line(f"[{number}/{len(runs)}] {spec.label}{note}: unsupported: {spec.unsupported}")
                continue
            low, high = estimate_s(spec)
            low_s, high_s = low_s + low, high_s + high
            pause_s, warm = pause_s + warm * spec.config.measure.cool_down_s, True
            batch = f"batch {spec.batch_per_device} per device, {spec.global_batch} global"
            self.line(f"[{number}/{len(runs)}] {spec.label}{note}: {batch}, {low:.0f} to {high:.0f} s")
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        pauses = f", {pause_s:.0f} s of them cooling down" if pause_s else ""
        self.line(f"{count}, about {low_s + pause_s:.0f} to {high_s + pause_s:.0f} s{pauses}; nothing was started")


def repeat_of(spec: RunSpec) -> str:
    """` repeat=2` where runs are repeated, and would look alike without it."""
    return f" repeat={spec.config.repeat}" if spec.config.measure.repeats > 1 else ""


def escape(text: str) -> str:
    """Rich takes brackets for markup, and a path or a name may hold some."""
    from rich.markup import escape as escaped

    return escaped(text)


def estimate_s(spec: RunSpec) -> tuple[float, float]:
    """(least, most) seconds of a run: start-up by framework, measuring and probes as set, and at the most all of the
    time that warm-up has. Updates that are slow, evaluation, and what is compiled on the way come on top."""
    settings = spec.config.measure
    other_s = SETUP_S.get(spec.config.strategy.framework, 4.0) + (PROBES * settings.probe_s if settings.probes else 0.0)
    return other_s + settings.min_s, other_s + settings.warmup_max_s + settings.max_s


def describe(ranks: list[Progress]) -> str:
    """Phase, throughput so far and time left, of rank 0."""
    if not ranks:
        return "starting"
    first = min(ranks, key=lambda p: p.rank)
    words = [first.phase]
    if first.samples_per_s is not None:
        words.append(f"{first.samples_per_s * len(ranks):,.0f} samples/s")
    if first.limit_s is not None:
        words.append(f"at most {max(0.0, first.limit_s - first.elapsed_s):.0f} s left")
    return ", ".join(words)
