"""Recorded runs as compared runs, their repeats as rows of one configuration, and which rows of two sides match."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scalebench.analysis.blocks import counting_flags
from scalebench.analysis.comparison.run_facts import NAMED_GROUPS, Facts, RunFacts, Value, collect_facts
from scalebench.analysis.identity import facts_key, is_under
from scalebench.analysis.read_runs import find_results
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import compare_runs, summarize_run
from scalebench.analysis.run_summary import RunSummary
from scalebench.core.result import Result, read_result
from scalebench.core.stats.log_means import mean_of_repeats

FAILED_STATUSES = ("failed", "oom", "timeout", "cancelled")
CLOCK_FIELDS = ("sm_clock_mhz_mean", "mem_clock_mhz_mean")
SEED_KEY = "seed"  # may differ between the repeats of a row if it is left out of the pairing
MAX_CLOSEST_CANDIDATES = 2000  # rows that are searched for the one closest to another


@dataclass(frozen=True)
class ComparedRun:
    """The part of one record that a comparison needs: with their blocks, thousands would not fit into memory."""

    record: Result  # without its ranks and its spec
    summary: RunSummary
    facts: RunFacts
    side: int = 0  # number of the folder on the command line
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
        by_session: dict[int, ComparisonRow] = {}
        for run in self.measured:
            by_session.setdefault(run.session, ComparisonRow(self.identity)).measured.append(run)
        return by_session


def load_compared_runs(paths: Sequence[str | os.PathLike[str]], side: int = 0) -> list[ComparedRun]:
    """Return each run at or below `paths` once, in the order of their start. InputError as `load` raises it."""
    files = find_results([Path(path) for path in paths])
    return drop_copies(make_compared_run(read_result(file), file.parent, side) for file in files)


def drop_copies(runs: Iterable[ComparedRun]) -> list[ComparedRun]:
    """Return each run once, in the order of their start; resume=true makes copies."""
    by_id: dict[str, ComparedRun] = {}
    for run in runs:
        by_id.setdefault(run.run_id, run)
    return sorted(by_id.values(), key=lambda run: run.started)


def make_compared_run(result: Result, folder: Path, side: int = 0) -> ComparedRun:
    slim = dataclasses.replace(result, ranks=[], spec={}, flags=counting_flags(result))
    return ComparedRun(slim, summarize_run(result, folder), collect_facts(result), side)


def configure_rows(rows: Iterable[ComparisonRow]) -> Configurations:
    """Return the measured runs of rows as configurations that are loaded together, which know their ratios."""
    rows = [row for row in rows if row.measured]
    compared = compare_runs(list({run.run_id: run.summary for row in rows for run in row.measured}.values()))
    return Configurations(compared, [row.run_ids for row in rows])


def make_comparison_rows(runs: Iterable[ComparedRun]) -> list[ComparisonRow]:
    """Group the repeats of each configuration, in order; a row has figures of its latest framework version only."""
    by_key: dict[str, ComparisonRow] = {}
    for run in runs:
        row = by_key.setdefault(facts_key(run.facts.identity), ComparisonRow(run.facts.identity))
        (row.unmeasured if run.rate is None else row.measured).append(run)
    for row in by_key.values():
        _leave_out_older_versions(row)
    return list(by_key.values())


def _leave_out_older_versions(row: ComparisonRow) -> None:
    versions = [run.record.scale.framework_version for run in row.measured]
    older = [version for version in versions if version != versions[-1]]
    if older:
        row.measured = [run for run in row.measured if run.record.scale.framework_version == versions[-1]]
        names = ", ".join(dict.fromkeys(version or "unknown" for version in older))
        row.notes.append(f"repeats of {names} are left out beside those of {versions[-1]}")


def merge_rows(
    rows: Sequence[ComparisonRow], without: Sequence[str]
) -> tuple[dict[str, ComparisonRow], list[tuple[ComparisonRow, str]]]:
    """Return rows by their key without some keys, and the rows that cannot be merged under one key with the reason."""
    groups: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        groups.setdefault(facts_key(row.identity, without), []).append(row)
    merged: dict[str, ComparisonRow] = {}
    refused = []
    for key, group in groups.items():
        differing = [name for name in find_differing_keys(*(row.identity for row in group)) if name != SEED_KEY]
        if differing:
            values = ", ".join(dict.fromkeys(format_fact(row.identity.get(differing[0])) for row in group))
            refused += [(row, f"without {differing[0]} several rows are one: {values}") for row in group]
        else:
            merged[key] = group[0]
            if len(group) > 1:
                measured, unmeasured = (
                    sorted((run for row in group for run in getattr(row, name)), key=lambda run: run.started)
                    for name in ("measured", "unmeasured")
                )
                notes = list(dict.fromkeys(note for row in group for note in row.notes))
                merged[key] = ComparisonRow(group[0].identity, measured, unmeasured, notes)
                _leave_out_older_versions(merged[key])
    return merged, refused


def find_differing_keys(first: Facts, *others: Facts) -> list[str]:
    """Return the keys in which facts differ; a missing key counts as null."""

    def differs(a: Value, b: Value) -> bool:
        return a is not b and a != b and format_fact(a) != format_fact(b)  # the costly part last: there are many pairs

    names = dict.fromkeys(name for identity in (first, *others) for name in identity)
    return [name for name in names if any(differs(first.get(name), other.get(name)) for other in others)]


def find_closest_row(
    identity: Facts, rows: Sequence[ComparisonRow], without: Sequence[str]
) -> tuple[ComparisonRow, list[str]] | None:
    """Return the row that differs in the fewest keys, and these keys; of another strategy or model only its name."""
    candidates = [
        (row, [key for key in find_differing_keys(identity, row.identity) if not is_under(key, without)])
        for row in rows[:MAX_CLOSEST_CANDIDATES]
    ]
    if not candidates:
        return None
    row, keys = min(candidates, key=lambda pair: len(pair[1]))
    other = [group for group in NAMED_GROUPS if f"{group}.name" in keys]
    return row, [key for key in keys if not is_under(key, other) or key.endswith(".name")]


def describe_differences(a: Facts, b: Facts, keys: Sequence[str]) -> str:
    """Return `train.batch_per_device: 10 and 20`, for the first three of `keys`."""
    texts = [f"{key}: {format_fact(a.get(key))} and {format_fact(b.get(key))}" for key in keys[:3]]
    return "; ".join(texts) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def format_fact(value: Value) -> str:
    """Return a value as text; null is `none`."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def drop_shared_runs(a: ComparisonRow, b: ComparisonRow) -> tuple[ComparisonRow, ComparisonRow] | None:
    """Drop runs that both rows have from the one that has others; None if both are the same runs.

    The ratio of figures that depend on each other has no interval, and a run compared with itself says nothing.
    """
    ids = [{run.run_id for run in row.measured} for row in (a, b)]
    shared = ids[0] & ids[1]
    if not shared:
        return a, b
    if ids[0] == ids[1]:
        return None
    note = "runs that both sides hold are left out of one"
    fewer = [dataclasses.replace(row, measured=[run for run in row.measured if run.run_id not in shared],
                                 notes=[*row.notes, note]) for row in (a, b)]  # fmt: skip
    return (fewer[0], b) if fewer[0].measured else (a, fewer[1])
