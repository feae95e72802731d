"""Records as launches, launches as rows of one configuration, and which rows of two sides are each other's. Layer 1."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scalebench.analysis import throughput
from scalebench.analysis.comparison.run_facts import NAMED, Described, Facts, Value, describe, under
from scalebench.analysis.read_runs import find
from scalebench.core.result import Result, read_result
from scalebench.core.stats.estimates import Interval

FAILED = ("failed", "oom", "timeout", "cancelled")
CLOCKS = ("sm_clock_mhz_mean", "mem_clock_mhz_mean")
SEED = "seed"  # differs between launches of one configuration, where it is left out of the pairing
MOST_LOOKED_AT = 2000  # rows, for the one that is closest to another


@dataclass(frozen=True)
class Launch:
    """What a comparison needs of one record; blocks are let go, or thousands of records would not fit into memory."""

    record: Result  # without its ranks and its spec
    started: datetime
    rate: float | None  # samples/s
    interval: Interval | None  # over its blocks
    facts: Described
    side: int = 0  # which of the given folders it came from

    @property
    def run_id(self) -> str:
        return self.record.run_id


@dataclass
class Row:
    """Launches of one configuration, in the order of their start: `measured` ones, and `others` that gave no figure."""

    identity: Facts
    measured: list[Launch] = field(default_factory=list)
    others: list[Launch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [launch.rate for launch in self.measured if launch.rate is not None]

    @property
    def rate(self) -> float:
        """Geometric mean over the launches, samples/s."""
        rates = self.rates
        return math.exp(math.fsum(map(math.log, rates)) / len(rates))


def launches(paths: Sequence[str | os.PathLike[str]], side: int = 0) -> list[Launch]:
    """Each run at or below `paths` once, in the order of their start. InputError as frame.load raises it."""
    return once(launch_of(read_result(file), side) for file in find([Path(path) for path in paths]))


def once(found: Iterable[Launch]) -> list[Launch]:
    """Copies of a run (resume=true makes some) are one launch."""
    known: dict[str, Launch] = {}
    for launch in found:
        known.setdefault(launch.run_id, launch)
    return sorted(known.values(), key=lambda launch: launch.started)


def launch_of(result: Result, side: int = 0) -> Launch:
    rate, interval = throughput.throughput(result)
    slim = dataclasses.replace(result, ranks=[], spec={})
    return Launch(slim, throughput.started(result), rate, interval, describe(result), side)


def kept(identity: Facts, without: Sequence[str]) -> Facts:
    """The facts that are not under one of the keys `without`, nor unknown."""
    return {key: value for key, value in identity.items() if value is not None and not under(key, without)}


def key_of(identity: Facts, without: Sequence[str] = ()) -> str:
    return json.dumps(kept(identity, without), sort_keys=True)


def rows(found: Iterable[Launch]) -> list[Row]:
    """Launches of one configuration as a row, in order; figures of the latest version of its framework only."""
    known: dict[str, Row] = {}
    for launch in found:
        row = known.setdefault(key_of(launch.facts.identity), Row(launch.facts.identity))
        (row.others if launch.rate is None else row.measured).append(launch)
    for row in known.values():
        _latest_version(row)
    return list(known.values())


def _latest_version(row: Row) -> None:
    versions = [launch.record.scale.framework_version for launch in row.measured]
    older = [version for version in versions if version != versions[-1]]
    if older:
        row.measured = [one for one in row.measured if one.record.scale.framework_version == versions[-1]]
        told = ", ".join(dict.fromkeys(version or "unknown" for version in older))
        row.notes.append(f"launches of {told} are left out beside those of {versions[-1]}")


def merged(found: Sequence[Row], without: Sequence[str]) -> tuple[dict[str, Row], list[tuple[Row, str]]]:
    """Rows by their key without some keys; and those that become one and are not, each with the reason."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(key_of(row.identity, without), []).append(row)
    whole: dict[str, Row] = {}
    refused = []
    for key, group in groups.items():
        unlike = [name for name in differing(*(row.identity for row in group)) if name != SEED]
        if unlike:
            values = ", ".join(dict.fromkeys(told(row.identity.get(unlike[0])) for row in group))
            refused += [(row, f"without {unlike[0]} several rows are one: {values}") for row in group]
        else:
            whole[key] = _joined(group)
    return whole, refused


def _joined(group: Sequence[Row]) -> Row:
    if len(group) == 1:
        return group[0]
    joined = Row(group[0].identity)
    joined.measured = sorted((one for row in group for one in row.measured), key=lambda one: one.started)
    joined.others = sorted((one for row in group for one in row.others), key=lambda one: one.started)
    joined.notes = list(dict.fromkeys(note for row in group for note in row.notes))
    _latest_version(joined)
    return joined


def differing(first: Facts, *others: Facts) -> list[str]:
    """Keys in which they differ; a key that is not there is null."""
    names = dict.fromkeys(name for identity in (first, *others) for name in identity)
    return [name for name in names if any(_unlike(first.get(name), other.get(name)) for other in others)]


def _unlike(one: Value, other: Value) -> bool:
    return one is not other and one != other and told(one) != told(other)  # the costly part last: pairs are many


def closest(identity: Facts, others: Sequence[Row], without: Sequence[str]) -> tuple[Row, list[str]] | None:
    """The row that differs in the fewest keys, and these keys: of another strategy or model its name says enough."""
    found = [
        (row, [key for key in differing(identity, row.identity) if not under(key, without)])
        for row in others[:MOST_LOOKED_AT]
    ]
    if not found:
        return None
    row, keys = min(found, key=lambda pair: len(pair[1]))
    other = [group for group in NAMED if f"{group}.name" in keys]
    return row, [key for key in keys if not under(key, other) or key.endswith(".name")]


def apart(one: Facts, other: Facts, keys: Sequence[str]) -> str:
    """`train.batch_per_device: 10 and 20`, of the first keys that differ."""
    said = [f"{key}: {told(one.get(key))} and {told(other.get(key))}" for key in keys[:3]]
    return "; ".join(said) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def told(value: Value) -> str:
    """A value in words; what is not there is `none`."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def without_shared(mine: Row, theirs: Row) -> tuple[Row, Row] | None:
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
