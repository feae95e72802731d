"""What people see while runs go on: one progress line a run, plain lines where the output is no terminal. Layer 3."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scalebench.measure.progress import Progress
from scalebench.results import Result
from scalebench.spec import RunSpec

MOST_COMMANDS = 3  # below a table
PLAIN_WIDTH = 200  # of a file or a pipe, where nobody's window is the limit
SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only


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
        head = f"[{number}/{planned}] {spec.label}"
        if spec.config.debug or not self.rich.is_terminal:
            self.line(f"{head} ...")
            yield lambda ranks: None
            return
        with self.rich.status(escape(head)) as status:
            yield lambda ranks: status.update(escape(f"{head}  {describe(ranks)}"))

    def ended(self, result: Result, folder: Path) -> None:
        """One line for a run that is not ok; a good one speaks through the table."""
        if result.status == "ok":
            return
        log = f" (log: {folder / result.log})" if result.log is not None else ""
        self.line(f"{result.scale.strategy} gpus={result.scale.gpus}: {result.status}: {result.reason}{log}")

    def skipped(self, result: Result, number: int, planned: int) -> None:
        self.line(f"[{number}/{planned}] {result.scale.strategy} gpus={result.scale.gpus}: done before, kept")

    def table(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        """The table of all runs at or below `paths`. InputError where there is none, or one cannot be read."""
        from scalebench.frame import load
        from scalebench.report.tables import baseline_commands, summary

        frame = load(paths)
        self.rich.print(summary(frame))
        for command in baseline_commands(frame)[:MOST_COMMANDS]:
            self.line(f"for the missing baselines: {command}")
        self.line(f"results: {', '.join(str(path) for path in paths)}")

    def plan(self, runs: Sequence[tuple[RunSpec, bool]]) -> None:
        """What a dry run lists: each run, and how long all may take."""
        low_s = high_s = 0.0
        several = len({spec.config.model.name for spec, _ in runs}) > 1
        for number, (spec, added) in enumerate(runs, 1):
            note = f" model={spec.config.model.name}" if several else ""
            note += " (baseline, added)" if added else ""
            note += " [oversubscribed]" if "oversubscribed" in spec.flags else ""
            if spec.unsupported is not None:
                self.line(f"[{number}/{len(runs)}] {spec.label}{note}: unsupported: {spec.unsupported}")
                continue
            low, high = estimate_s(spec)
            low_s, high_s = low_s + low, high_s + high
            batch = f"batch {spec.batch_per_device} per device, {spec.global_batch} global"
            self.line(f"[{number}/{len(runs)}] {spec.label}{note}: {batch}, {low:.0f} to {high:.0f} s")
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        self.line(f"{count}, about {low_s:.0f} to {high_s:.0f} s; nothing was started")


def escape(text: str) -> str:
    """Rich takes brackets for markup, and a path or a name may hold some."""
    from rich.markup import escape as escaped

    return escaped(text)


def estimate_s(spec: RunSpec) -> tuple[float, float]:
    """(least, most) seconds of a run: start-up by framework, warm-up and evaluation left out, measuring as set."""
    settings = spec.config.measure
    start_s = SETUP_S.get(spec.config.strategy.framework, 4.0)
    return start_s + settings.min_s, start_s + settings.max_s


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
