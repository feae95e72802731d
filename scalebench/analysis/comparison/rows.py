"""Runs and rows of a comparison: the repeats of one configuration form a row, and equal keys make a pair of two; the
values of the compared key, and what differs between the rows of pairs."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from scalebench.analysis.comparison import facts
from scalebench.analysis.comparison.facts import NONE, Facts, RunFacts, find_differing_keys, main_key, pairing_key
from scalebench.analysis.identity import group_by, is_under
from scalebench.analysis.read_runs import find_results
from scalebench.analysis.rows import RunSummary, summarize_run
from scalebench.analysis.throughput import counting_flags
from scalebench.analysis.verdicts import OTHER_PROGRAMS_FLAGS, read_doubt
from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.result import Result, read_result
from scalebench.core.stats.log_means import mean_of_repeats
from scalebench.core.sweep_file import find_places
from scalebench.core.units import format_count

SEED_KEY = "seed"  # may differ between the repeats of a row if it is left out of the pairing
DEVICES_KEY = "hardware.device_ids"
CLOCK_FIELDS = ("sm_clock_mhz_mean", "mem_clock_mhz_mean")
MIN_CLOCK_DIFFERENCE = 0.01  # share by which clocks must differ to be reported


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
        return self.summary.rate

    def facts_under(self, key: str) -> Facts:
        """Return the identity below a key; a key that is not part of it is looked up among the other facts."""
        identity, other = self.facts.identity, self.facts.other
        below = {name: value for name, value in identity.items() if is_under(name, facts.keys_bound_to(key))}
        if not any(is_under(name, [key]) for name in identity):
            below = {name: value for name, value in other.items() if is_under(name, [key])} | below
        return {name: value for name, value in below.items() if value != NONE}


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


RowPairs = Sequence[tuple[ComparisonRow, ComparisonRow]]


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
    return ComparedRun(slim, summarize_run(result, folder), facts.collect_facts(result))


def make_side(name: str, runs: Iterable[ComparedRun], without: Sequence[str]) -> ComparedSide:
    """Group runs by their key without some facts. Those of one key that differ in more than the seed are not repeats of
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


def group_by_value(runs: Sequence[ComparedRun], key: str, base: str | None) -> dict[str, list[ComparedRun]]:
    """Return the runs of each value of `key`: the base first, then those of the first folder in the order in which its
    sweep was given them, then others, such as those of added baselines, in natural order.

    A value of `strategy` is a name with all options; where two share the name, it is followed by what differs.
    InputError for a base that is none of the values.
    """
    groups = group_by(runs, lambda run: pairing_key(run.facts_under(key)))
    values = [(first.facts.other | first.facts.identity).get(main_key(key), NONE) for first, *_ in groups.values()]
    own_facts = [first.facts_under(key) for first, *_ in groups.values()]
    by_name: dict[str, list[ComparedRun]] = {}
    bases = []
    for value, own, group in zip(values, own_facts, groups.values(), strict=True):
        same_name = [each for other, each in zip(values, own_facts, strict=True) if other == value]
        words = [value, *(f"{name.rpartition('.')[2]}={own.get(name, NONE)}"
                          for name in find_differing_keys(*same_name))]  # fmt: skip
        if key == DEVICES_KEY:  # and the kinds of connection between the devices, such as PIX
            devices = re.findall(r"\d+", group[0].facts.identity.get(DEVICES_KEY, NONE))
            words += group[0].record.machine.list_links([int(number) for number in devices])
        name = " ".join(words)
        by_name.setdefault(name, []).extend(group)
        bases += [name] if base in (name, value) else []
    if base is not None and not bases:
        raise InputError(f"--base: {unknown_name_message(f'value of {key}', base, list(by_name))}")

    def sort_key(name: str) -> tuple[Any, ...]:
        # 10 comes after 2, and text in the order of its letters.
        parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", name) if part]
        natural = [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]
        return name not in bases, by_name[name][0].side, min(run.place for run in by_name[name]), natural

    return {name: by_name[name] for name in sorted(by_name, key=sort_key)}


def find_differences(pairs: RowPairs, by: str | None) -> list[tuple[str, str, str, int]]:
    """Return (key, values of a, values of b, number of pairs) of all that differs within pairs, settings first.

    Left out are the key by which rows are compared, options of a strategy or model that the other one lacks, and what
    follows from the name of the strategy, such as its launcher.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for pair in pairs:
        a, b = map(_join_facts, pair)
        for key in find_differing_keys(a, b):
            group, _, option = key.partition(".options.")
            group, values = "strategy" if key.startswith("strategy.") else group, (a.get(key, NONE), b.get(key, NONE))
            has_other_name = a.get(f"{group}.name", NONE) != b.get(f"{group}.name", NONE) and key != f"{group}.name"
            follows = has_other_name and (NONE in values if option else group == "strategy")
            if (by is None or key != main_key(by)) and not follows:
                counts[key, *values] += 1
        for name in CLOCK_FIELDS:
            of_rows = [[getattr(run.record.monitor, name) for run in row.measured] for row in pair]
            present = [[clock for clock in of_row if clock is not None] for of_row in of_rows]
            mhz_a, mhz_b = map(fmean, present) if all(present) else (0.0, 0.0)
            if mhz_a and mhz_b and abs(mhz_b / mhz_a - 1) > MIN_CLOCK_DIFFERENCE:
                counts[name, f"{mhz_a:.0f}", f"{mhz_b:.0f}"] += 1
    return [(*entry, count) for entry, count in counts.items()]


def _join_facts(row: ComparisonRow) -> Facts:
    """Return all facts of the repeats of a row, differing values joined by `or`."""
    of_runs = [{**run.facts.identity, **run.facts.other} for run in row.measured]
    names = dict.fromkeys(chain(*of_runs))
    return {name: " or ".join(dict.fromkeys(each.get(name, NONE) for each in of_runs)) for name in names}


def describe_other_programs(name: str, rows: Iterable[ComparisonRow]) -> Iterator[str]:
    """Yield what programs outside the runs of a side took of the machine: it labels a verdict on ratios within rounds,
    and forbids others."""
    records = list({run.run_id: run.record for row in rows for run in row.measured}.values())
    for flag in OTHER_PROGRAMS_FLAGS:
        if flagged := [record for record in records if flag in record.flags]:
            most = max(record.monitor.cpu_cores_others_mean or 0.0 for record in flagged)
            took = f", {most:.1f} of {flagged[0].machine.cpus} cores at most" if flag == "busy_machine" and most else ""
            programs = dict.fromkeys(each for record in flagged for each in record.monitor.other_programs or ())
            took += f", such as {next(iter(programs))}" if programs else ""
            yield f"{name}: {read_doubt(flag)} in {len(flagged)} of {format_count(len(records), 'run')}{took}"
