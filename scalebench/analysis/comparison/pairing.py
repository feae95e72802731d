"""Runs and rows of a comparison: the repeats of one configuration form a row, and equal keys make a pair of two."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path

from scalebench.analysis.comparison.run_facts import NONE, Facts, RunFacts, collect_facts, find_differing_keys
from scalebench.analysis.identity import group_by, is_under
from scalebench.analysis.read_runs import find_results
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import RunSummary, compare_runs, summarize_run
from scalebench.analysis.throughput import counting_flags
from scalebench.core.result import Result, read_result
from scalebench.core.stats.log_means import mean_of_repeats
from scalebench.core.sweep_file import find_places

SEED_KEY = "seed"  # may differ between the repeats of a row if it is left out of the pairing


@dataclass(frozen=True)
class ComparedRun:
    """The part of one record that a comparison needs: with their blocks, thousands would not fit into memory."""

    record: Result  # without its ranks and its spec
    summary: RunSummary
    facts: RunFacts
    side: int = 0  # number of the folder on the command line
    place: float = math.inf  # among the runs that its sweep was asked for; infinite for others, and where it is unknown
    session: int = 0  # as sessions.number_sessions numbers them; 0: all are one

    @property
    def run_id(self) -> str:
        return self.summary.run_id

    @property
    def started(self) -> datetime:
        return self.summary.started

    @property
    def rate(self) -> float | None:
        """Samples/s."""
        return self.summary.throughput[0]


@dataclass
class ComparisonRow:
    """The repeats of one configuration in the order of their start: `measured` ones, and those without a throughput."""

    identity: Facts
    measured: list[ComparedRun] = field(default_factory=list)
    unmeasured: list[ComparedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.measured if run.rate is not None]

    @property
    def rate(self) -> float:
        """Geometric mean over the repeats, samples/s."""
        return math.exp(mean_of_repeats(self.rates).mean)

    @property
    def run_ids(self) -> list[str]:
        return [run.run_id for run in self.measured]

    @property
    def sessions(self) -> dict[int, ComparisonRow]:
        """The measured repeats of each session, in the order of time."""
        by_session = group_by(self.measured, lambda run: run.session)
        return {number: ComparisonRow(self.identity, runs) for number, runs in by_session.items()}


@dataclass
class ComparedSide:
    """The rows of one side by their key, and the facts of those that cannot be one row, with the reason."""

    name: str
    rows: dict[frozenset[tuple[str, str]], ComparisonRow]
    refused: list[tuple[Facts, str]]


def load_compared_runs(paths: Sequence[str | os.PathLike[str]], side: int = 0) -> list[ComparedRun]:
    """Return each run at or below `paths` once, in the order of their start. InputError as `load` raises it."""
    places_in, runs = cache(find_places), []
    for file in find_results([Path(path) for path in paths]):
        place = places_in(file.parent.parent).get(file.parent.name, math.inf)
        run = make_compared_run(read_result(file), file.parent)
        runs.append(dataclasses.replace(run, side=side, place=place))
    return drop_copies(runs)


def drop_copies(runs: Iterable[ComparedRun]) -> list[ComparedRun]:
    """Return each run once, in the order of their start; resume=true makes copies."""
    by_id = group_by(runs, lambda run: run.run_id)
    return sorted((copies[0] for copies in by_id.values()), key=lambda run: run.started)


def make_compared_run(result: Result, folder: Path) -> ComparedRun:
    slim = dataclasses.replace(result, ranks=[], spec={}, flags=counting_flags(result))
    return ComparedRun(slim, summarize_run(result, folder), collect_facts(result))


def pairing_key(facts: Facts, without: Sequence[str] = ()) -> frozenset[tuple[str, str]]:
    """Return what both rows of a pair share: all facts but those `without`, and but those without a value."""
    return frozenset((key, value) for key, value in facts.items() if value != NONE and not is_under(key, without))


def make_side(name: str, runs: Iterable[ComparedRun], without: Sequence[str]) -> ComparedSide:
    """Group runs by their key without some facts. Those of one key that differ in more than the seed are no repeats of
    each other; a row has figures of its latest framework version only."""
    side = ComparedSide(name, {}, [])
    for key, group in group_by(runs, lambda run: pairing_key(run.facts.identity, without)).items():
        identities = list({pairing_key(run.facts.identity): run.facts.identity for run in group}.values())
        if differing := [each for each in find_differing_keys(*identities) if each != SEED_KEY]:
            values = ", ".join(dict.fromkeys(each.get(differing[0], NONE) for each in identities))
            reason = f"without {differing[0]} several rows are one: {values}"
            side.refused += [(each, reason) for each in identities]
            continue
        measured = [run for run in group if run.rate is not None]
        versions = [run.record.scale.framework_version for run in measured]
        older = list(dict.fromkeys(version or "unknown" for version in versions if version != versions[-1]))
        latest = [run for run in measured if run.record.scale.framework_version == versions[-1]]
        notes = [f"repeats of {', '.join(older)} are left out beside those of {versions[-1]}"] if older else []
        side.rows[key] = ComparisonRow(identities[0], latest, [run for run in group if run.rate is None], notes)
    return side


def configure_rows(rows: Iterable[ComparisonRow]) -> Configurations:
    """Return the measured runs of rows as configurations that are loaded together, which know their ratios."""
    rows = [row for row in rows if row.measured]
    compared = compare_runs(list({run.run_id: run.summary for row in rows for run in row.measured}.values()))
    return Configurations(compared, [row.run_ids for row in rows])


def drop_shared_runs(a: ComparisonRow, b: ComparisonRow) -> tuple[ComparisonRow, ComparisonRow] | None:
    """Drop runs that both rows have from the one that has others; None if both are the same runs.

    The ratio of figures that depend on each other has no interval, and a run compared with itself says nothing.
    """
    shared = {*a.run_ids} & {*b.run_ids}
    if not shared:
        return a, b
    if {*a.run_ids} == {*b.run_ids}:
        return None
    note = "runs that both sides hold are left out of one"
    fewer = [dataclasses.replace(row, measured=[run for run in row.measured if run.run_id not in shared],
                                 notes=[*row.notes, note]) for row in (a, b)]  # fmt: skip
    return (fewer[0], b) if fewer[0].measured else (a, fewer[1])
