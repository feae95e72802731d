"""Records as launches, launches as rows of one configuration, and which rows of two sides are each other's. Layer 1."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scalebench.analysis import throughput
from scalebench.analysis.comparison.run_facts import NAMED_GROUPS, RunFacts, Facts, Value, collect_facts
from scalebench.analysis.identity import facts_key, is_under
from scalebench.analysis.read_runs import find_results
from scalebench.analysis.run_summary import start_time
from scalebench.core.result import Result, read_result
from scalebench.core.stats.estimates import Estimate

FAILED_STATUSES = ("failed", "oom", "timeout", "cancelled")
CLOCK_FIELDS = ("sm_clock_mhz_mean", "mem_clock_mhz_mean")
SEED_KEY = "seed"  # differs between launches of one configuration, where it is left out of the pairing
MAX_CLOSEST_CANDIDATES = 2000  # rows, for the one that is closest to another


@dataclass(frozen=True)
class ComparedRun:
    """What a comparison needs of one record; blocks are let go, or thousands of records would not fit into memory."""

    record: Result  # without its ranks and its spec
    started: datetime
    rate: float | None  # samples/s
    interval: Estimate | None  # over its blocks
    facts: RunFacts
    side: int = 0  # which of the given folders it came from

    @property
    def run_id(self) -> str:
        return self.record.run_id


@dataclass
class ComparisonRow:
    """Launches of one configuration, in the order of their start: `measured` ones, and `others` that gave no figure."""

    identity: Facts
    measured: list[ComparedRun] = field(default_factory=list)
    others: list[ComparedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [launch.rate for launch in self.measured if launch.rate is not None]

    @property
    def rate(self) -> float:
        """Geometric mean over the launches, samples/s."""
        rates = self.rates
        return math.exp(math.fsum(map(math.log, rates)) / len(rates))


def load_compared_runs(paths: Sequence[str | os.PathLike[str]], side: int = 0) -> list[ComparedRun]:
    """Each run at or below `paths` once, in the order of their start. InputError as frame.load raises it."""
    return drop_copies(make_compared_run(read_result(file), side) for file in find_results([Path(path) for path in paths]))


def drop_copies(found: Iterable[ComparedRun]) -> list[ComparedRun]:
    """Copies of a run (resume=true makes some) are one launch."""
    known: dict[str, ComparedRun] = {}
    for launch in found:
        known.setdefault(launch.run_id, launch)
    return sorted(known.values(), key=lambda launch: launch.started)


def make_compared_run(result: Result, side: int = 0) -> ComparedRun:
    rate, interval = throughput.throughput(result)
    slim = dataclasses.replace(result, ranks=[], spec={})
    return ComparedRun(slim, start_time(result), rate, interval, collect_facts(result), side)


def make_comparison_rows(found: Iterable[ComparedRun]) -> list[ComparisonRow]:
    """Launches of one configuration as a row, in order; figures of the latest version of its framework only."""
    known: dict[str, ComparisonRow] = {}
    for launch in found:
        row = known.setdefault(facts_key(launch.facts.identity), ComparisonRow(launch.facts.identity))
        (row.others if launch.rate is None else row.measured).append(launch)
    for row in known.values():
        _keep_latest_version(row)
    return list(known.values())


def _keep_latest_version(row: ComparisonRow) -> None:
    versions = [launch.record.scale.framework_version for launch in row.measured]
    older = [version for version in versions if version != versions[-1]]
    if older:
        row.measured = [one for one in row.measured if one.record.scale.framework_version == versions[-1]]
        told = ", ".join(dict.fromkeys(version or "unknown" for version in older))
        row.notes.append(f"launches of {told} are left out beside those of {versions[-1]}")


def merge_rows(found: Sequence[ComparisonRow], without: Sequence[str]) -> tuple[dict[str, ComparisonRow], list[tuple[ComparisonRow, str]]]:
    """Rows by their key without some keys; and those that become one and are not, each with the reason."""
    groups: dict[str, list[ComparisonRow]] = {}
    for row in found:
        groups.setdefault(facts_key(row.identity, without), []).append(row)
    whole: dict[str, ComparisonRow] = {}
    refused = []
    for key, group in groups.items():
        unlike = [name for name in find_differing_keys(*(row.identity for row in group)) if name != SEED_KEY]
        if unlike:
            values = ", ".join(dict.fromkeys(format_fact(row.identity.get(unlike[0])) for row in group))
            refused += [(row, f"without {unlike[0]} several rows are one: {values}") for row in group]
        else:
            whole[key] = _join_rows(group)
    return whole, refused


def _join_rows(group: Sequence[ComparisonRow]) -> ComparisonRow:
    if len(group) == 1:
        return group[0]
    joined = ComparisonRow(group[0].identity)
    joined.measured = sorted((one for row in group for one in row.measured), key=lambda one: one.started)
    joined.others = sorted((one for row in group for one in row.others), key=lambda one: one.started)
    joined.notes = list(dict.fromkeys(note for row in group for note in row.notes))
    _keep_latest_version(joined)
    return joined


def find_differing_keys(first: Facts, *others: Facts) -> list[str]:
    """Keys in which they differ; a key that is not there is null."""
    names = dict.fromkeys(name for identity in (first, *others) for name in identity)
    return [name for name in names if any(_differs(first.get(name), other.get(name)) for other in others)]


def _differs(one: Value, other: Value) -> bool:
    return one is not other and one != other and format_fact(one) != format_fact(other)  # the costly part last: pairs are many


def find_closest_row(identity: Facts, others: Sequence[ComparisonRow], without: Sequence[str]) -> tuple[ComparisonRow, list[str]] | None:
    """The row that differs in the fewest keys, and these keys: of another strategy or model its name says enough."""
    found = [
        (row, [key for key in find_differing_keys(identity, row.identity) if not is_under(key, without)])
        for row in others[:MAX_CLOSEST_CANDIDATES]
    ]
    if not found:
        return None
    row, keys = min(found, key=lambda pair: len(pair[1]))
    other = [group for group in NAMED_GROUPS if f"{group}.name" in keys]
    return row, [key for key in keys if not is_under(key, other) or key.endswith(".name")]


def describe_differences(one: Facts, other: Facts, keys: Sequence[str]) -> str:
    """`train.batch_per_device: 10 and 20`, of the first keys that differ."""
    said = [f"{key}: {format_fact(one.get(key))} and {format_fact(other.get(key))}" for key in keys[:3]]
    return "; ".join(said) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def format_fact(value: Value) -> str:
    """A value in words; what is not there is `none`."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def drop_shared_runs(mine: ComparisonRow, theirs: ComparisonRow) -> tuple[ComparisonRow, ComparisonRow] | None:
    """Two rows without the runs that both hold, left out where one has others; None where both are the same runs.

    The ratio of figures that depend on each other has no interval, and a run is no news beside itself.
    """
    ids = [{launch.run_id for launch in row.measured} for row in (mine, theirs)]
    shared = ids[0] & ids[1]
    if not shared:
        return mine, theirs
    if ids[0] == ids[1]:
        return None
    note = "runs that both sides hold are left out of one"
    fewer = [dataclasses.replace(row, measured=[one for one in row.measured if one.run_id not in shared],
                                 notes=[*row.notes, note]) for row in (mine, theirs)]  # fmt: skip
    return (fewer[0], theirs) if fewer[0].measured else (mine, fewer[1])
