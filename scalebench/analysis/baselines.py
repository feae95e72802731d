"""Which of the one-device rows that are loaded together a run is compared with. Layer 1."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from scalebench.analysis.run_summary import Figures, Placement, Run
from scalebench.core.config_files import option_defaults
from scalebench.core.config_fingerprint import asked_options
from scalebench.core.result import Result
from scalebench.core.spec import normalize_train_options

R = TypeVar("R", bound=Run)
_ENCODER = msgspec.json.Encoder(order="deterministic")
OF_NO_MATTER = ("gpus", "repeat", "resume", "baseline", "dry_run", "debug", "measure", "sweep")
# Keys of the hardware: of where ranks stand and how they get there, which is of no matter to a single device.
PLACEMENT = ("device_ids", "bind", "environment", "layout", "interface", "stage", "max_jobs", "slurm")


def comparison_key(run: Run, strategy: bool) -> str:
    """What two rows must share to be compared by speedup.

    The workload, the machine and how it is trained; not the number of devices, nor how it is measured. With `strategy`
    also the strategy and its options.
    """
    return (run.keys if isinstance(run, Figures) else comparison_keys(run))[strategy]


def comparison_keys(result: Result) -> tuple[str, str]:
    """comparison_key without and with the strategy. Interned: rows of a sweep have few different ones."""
    tree = {key: value for key, value in result.spec.items() if key not in (*OF_NO_MATTER, "strategy")}
    # Of one machine is the placement; which of several rows to take is up to Candidates.
    for group, left_out in (("dataset", ("cache",)), ("hardware", PLACEMENT)):
        if group in tree:
            tree[group] = {key: value for key, value in tree[group].items() if key not in left_out}
    if "train" in tree:
        tree["train"] = normalize_train_options(tree["train"])
    kept: list[Any] = [tree, result.scale.device, sorted({gpu.name or "" for gpu in result.machine.gpus})]
    if result.scale.device == "cpu":
        kept.append(result.machine.cpu_model)
    if result.quality.max_batch is not None:  # whose figures are of few updates
        kept.append("max_batch")
    chosen = result.spec.get("strategy", {})
    options = chosen.get("options")
    own = [chosen.get("name"), options and asked_options(options)]
    text, own_text = (_ENCODER.encode(part).decode() for part in (kept, own))
    return sys.intern(text), sys.intern(f"{text[:-1]},{own_text}]")


def started(run: Run) -> datetime:
    if isinstance(run, Figures):
        return run.started
    when = datetime.fromisoformat(run.started_at)
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def placement(run: Run) -> Placement:
    """Variables, binding and first device of a row; those of older records, which have none, are the usual ones."""
    if isinstance(run, Figures):
        return run.placement
    hardware = run.spec.get("hardware", {})
    variables = tuple(sorted((name, str(value)) for name, value in (hardware.get("environment") or {}).items()))
    return variables, hardware.get("bind") or "numa", (hardware.get("device_ids") or [0])[0]


def as_it_comes(run: Run) -> bool:
    """Whether all options of the strategy have their defaults."""
    if isinstance(run, Figures):
        return run.as_it_comes
    chosen = run.spec.get("strategy", {})
    defaults = option_defaults(run.scale.strategy)
    return all(value == defaults.get(key, value) for key, value in (chosen.get("options") or {}).items())


@dataclass
class Baselines(Generic[R]):
    """One-device rows by what they can be compared with."""

    own: dict[str, Candidates[R]]
    bare: dict[tuple[str, str], Candidates[R]]

    @classmethod
    def among(cls, runs: Iterable[R]) -> Baselines[R]:
        """All good one-device rows."""
        found: Baselines[R] = cls({}, {})
        for run in runs:
            if run.status == "ok" and run.scale.gpus == 1:
                found.own.setdefault(comparison_key(run, True), Candidates()).add(run)
                if run.scale.framework == "none" or as_it_comes(run):
                    key = (run.scale.strategy, comparison_key(run, False))
                    found.bare.setdefault(key, Candidates()).add(run)
        return found

    def self_of(self, run: Run, bare: bool = False) -> R | None:
        """The same strategy on one device."""
        found = self.own.get(comparison_key(run, True))
        return None if found is None else found.nearest(run, bare)

    def bare_of(self, run: Run) -> R | None:
        """One device, no wrapper: the strategy's own `baseline` with the options that it comes with."""
        name = run.scale.baseline_bare
        if name == run.scale.strategy and run.scale.framework == "none":  # whose options are the workload
            return self.self_of(run, bare=True)
        candidates = self.bare.get((name, comparison_key(run, False))) if name else None
        if candidates is not None:
            return candidates.nearest(run, bare=True)
        return self.self_of(run) if name == run.scale.strategy else None


@dataclass
class Candidates(Generic[R]):
    """Rows that a run can be compared with, of which one is the nearest. There may be thousands."""

    by_placement: dict[Placement, list[tuple[int, R]]] = field(default_factory=dict)  # numbered as they came
    count: int = 0
    timelines: dict[tuple[Placement, ...], Timelines[R]] = field(default_factory=dict)

    def add(self, run: R) -> None:
        self.by_placement.setdefault(placement(run), []).append((self.count, run))
        self.count += 1
        self.timelines.clear()

    def nearest(self, run: Run, bare: bool = False) -> R:
        """The row itself if it is one of them; else of the same repeat if there is one, and closest in time.

        Machines drift: a baseline of the same sweep says more than the latest of all. One of the same placement goes
        before all others, and then one of the usual placement. A bare row on one device has the usual one first, not
        itself: that is how devices are compared, each alone.
        """
        alone = bare and run.scale.gpus == 1 and run.scale.baseline_bare == run.scale.strategy
        mine = placement(run)

        def unlike(theirs: Placement) -> tuple[list[bool], bool, bool, int]:
            other = [] if alone else [a != b for a, b in zip(theirs, mine, strict=True)]
            variables, bind, first = theirs
            return other, variables != (), bind != "numa", first

        least = min(map(unlike, self.by_placement))
        alike = tuple(where for where in self.by_placement if unlike(where) == least)
        if alike not in self.timelines:
            numbered = sorted((pair for where in alike for pair in self.by_placement[where]), key=lambda pair: pair[0])
            self.timelines[alike] = Timelines([candidate for _, candidate in numbered])
        return self.timelines[alike].nearest(run)


class Timelines(Generic[R]):
    """Rows of one placement in the order of time: all of them, and those of each repeat."""

    def __init__(self, rows: Sequence[R]) -> None:
        self.named: dict[str, list[R]] = {}
        repeats: dict[int, list[R]] = {}
        for row in rows:
            self.named.setdefault(row.run_id, []).append(row)
            repeats.setdefault(row.scale.repeat, []).append(row)
        self.all = Timeline(rows)
        self.of_repeat = {repeat: Timeline(alike) for repeat, alike in repeats.items()}

    def nearest(self, run: Run) -> R:
        if run.run_id in self.named:
            return Timelines.first_of(self.named[run.run_id], run)
        return self.of_repeat.get(run.scale.repeat, self.all).nearest(started(run))

    @staticmethod
    def first_of(copies: Sequence[R], run: Run) -> R:
        """Of copies of the run, or of runs of one name."""

        def apart(copy: R) -> tuple[bool, float]:
            return copy.scale.repeat != run.scale.repeat, abs((started(copy) - started(run)).total_seconds())

        return min(copies, key=apart)


class Timeline(Generic[R]):
    """At least one row; of two that are as close the one that came first is the nearest."""

    def __init__(self, rows: Sequence[R]) -> None:
        numbered = sorted(enumerate(rows), key=lambda pair: (started(pair[1]), pair[0]))
        self.numbered = numbered
        self.times = [started(row) for _, row in numbered]

    def nearest(self, when: datetime) -> R:
        after = bisect_left(self.times, when)
        sides = [after] if after < len(self.times) else []
        if after > 0:
            sides.append(bisect_left(self.times, self.times[after - 1]))
        at = min(sides, key=lambda side: (abs(self.times[side] - when), self.numbered[side][0]))
        return self.numbered[at][1]
