"""How rows of a comparison are called, and in what they differ beside what is compared. Layer 1.

The values that a key has in a set of runs, and how to call them. Layer 1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scalebench.analysis.comparison.pairing import CLOCK_FIELDS, ComparedRun, ComparisonRow, find_differing_keys, format_fact
from scalebench.analysis.comparison.run_facts import Facts, main_key, keys_bound_to
from scalebench.analysis.identity import is_under
from scalebench.core.errors import InputError, unknown_name_message

FIRST_KEYS = ("model.name", "dataset.name", "hardware.name", "scaling", "strategy.name", "gpus")
ALWAYS_SHOWN_KEYS = ("strategy.name", "gpus")
SAMPLE_FACTS = ("model", "dataset.name", "dataset.image_size", "dataset.dtype", "dataset.path", "dataset.classes")
MIN_CLOCK_DIFFERENCE = 0.01  # by which clocks must differ to be told
DIFFERENT_SAMPLES_NOTE = (
    "rows of other models or data are compared: a sample is not the same work in both, and the ratio is one of "
    "samples/s, not of how soon a training ends"
)


class RowPair(Protocol):
    @property
    def a(self) -> ComparisonRow: ...

    @property
    def b(self) -> ComparisonRow: ...


class Labels:
    """The fewest keys that tell all rows apart; strategy and number of devices are always among them.

    Keys `without` are what is compared, or left out, and name no row.
    """

    def __init__(self, rows: Sequence[ComparisonRow], without: Sequence[str]) -> None:
        names = dict.fromkeys([*FIRST_KEYS, *find_differing_keys(*(row.identity for row in rows))] if rows else FIRST_KEYS)
        self.keys: list[str] = []
        groups = [list(rows)]
        for name in names:
            if is_under(name, without):
                continue
            finer = [part for group in groups for part in _split_by_fact(group, name)]
            if name in ALWAYS_SHOWN_KEYS or len(finer) > len(groups):
                self.keys.append(name)
            groups = finer

    def of(self, row: ComparisonRow) -> dict[str, str]:
        return {shorten_key(key): format_fact(row.identity.get(key)) for key in self.keys}


def _split_by_fact(group: Sequence[ComparisonRow], name: str) -> list[list[ComparisonRow]]:
    found: dict[str, list[ComparisonRow]] = {}
    for row in group:
        found.setdefault(format_fact(row.identity.get(name)), []).append(row)
    return list(found.values())


def shorten_key(key: str) -> str:
    """`strategy.name` is the strategy, `train.precision` the precision."""
    parts = key.split(".")
    return parts[0] if parts[-1] == "name" else parts[-1]


def find_differences(pairs: Iterable[tuple[ComparisonRow, ComparisonRow]], by: str | None) -> list[tuple[str, str, str, int]]:
    """(key, values of a, values of b, number of pairs) of all that differs within pairs, what was asked for first.

    Not the key that they are compared by, nor options of a strategy or a model that the other one does not have.
    """
    found: dict[tuple[str, str, str], int] = {}
    for a, b in pairs:
        for key in [*find_differing_keys(a.identity, b.identity), *_differing_other_facts(a, b)]:
            if (by is not None and key == main_key(by)) or _belongs_to_one_side(a, b, key):
                continue
            entry = (key, _format_row_fact(a, key), _format_row_fact(b, key))
            found[entry] = found.get(entry, 0) + 1
        for entry in _find_clock_differences(a, b):
            found[entry] = found.get(entry, 0) + 1
    return [(*entry, count) for entry, count in found.items()]


def _belongs_to_one_side(a: ComparisonRow, b: ComparisonRow, key: str) -> bool:
    group = key.partition(".options.")[0]
    unlike = format_fact(a.identity.get(f"{group}.name")) != format_fact(b.identity.get(f"{group}.name"))
    return group != key and unlike and None in (a.identity.get(key), b.identity.get(key))


def _differing_other_facts(a: ComparisonRow, b: ComparisonRow) -> list[str]:
    names = dict.fromkeys(name for row in (a, b) for launch in row.measured for name in launch.facts.free)
    return [name for name in names if name not in a.identity and _format_row_fact(a, name) != _format_row_fact(b, name)]


def _format_row_fact(row: ComparisonRow, key: str) -> str:
    return " or ".join(dict.fromkeys(format_fact(_fact_of_run(launch, key)) for launch in row.measured))


def _fact_of_run(launch: ComparedRun, key: str) -> str | int | float | bool | None:
    identity, free = launch.facts.identity, launch.facts.free
    return identity[key] if key in identity else free.get(key)


def _find_clock_differences(a: ComparisonRow, b: ComparisonRow) -> list[tuple[str, str, str]]:
    """Clocks that were measured, where they differ."""
    found = []
    for name in CLOCK_FIELDS:
        mine, theirs = _mean_over_repeats(a, name), _mean_over_repeats(b, name)
        if mine and theirs and abs(theirs / mine - 1) > MIN_CLOCK_DIFFERENCE:
            found.append((name, f"{mine:.0f}", f"{theirs:.0f}"))
    return found


def _mean_over_repeats(row: ComparisonRow, name: str) -> float | None:
    known = [getattr(launch.record.monitor, name) for launch in row.measured]
    known = [value for value in known if value is not None]
    return math.fsum(known) / len(known) if known else None


def warn_about_samples(pairs: Sequence[RowPair]) -> list[str]:
    """The warning that samples of a pair are not alike, if those of any are not."""
    unlike = any(is_under(key, SAMPLE_FACTS) for pair in pairs for key in find_differing_keys(pair.a.identity, pair.b.identity))
    return [DIFFERENT_SAMPLES_NOTE] if unlike else []


@dataclass(frozen=True)
class KeyValue:
    """One value of the key, or one set of values of the keys below it, and the runs that have it."""

    name: str
    run_ids: frozenset[str]


def find_key_values(launches: Sequence[ComparedRun], key: str, base: str | None) -> list[KeyValue]:
    """The values of `key` with the base first; else those of the first folder first, and in order.

    Values of `strategy` are its name with all its options; two of one name are told apart by what differs. InputError
    for a base that is none of them.
    """
    groups: dict[str, list[ComparedRun]] = {}
    for launch in launches:
        groups.setdefault(json.dumps(_facts_under(launch, key), sort_keys=True), []).append(launch)
    found = list(groups.values())
    facts = [_facts_under(group[0], key) for group in found]
    heads = [_main_value(group[0], key) for group in found]
    names = [_name_value(number, heads, facts) for number in range(len(found))]
    if base is not None and base not in (*names, *heads):
        raise InputError(f"--base: {unknown_name_message(f'value of {key}', base, names)}")

    def place(number: int) -> tuple[bool, int, list[tuple[int, float, str]]]:
        return base not in (names[number], heads[number]), found[number][0].side, _natural_order(names[number])

    ordered = sorted(range(len(found)), key=place)
    return [KeyValue(names[n], frozenset(launch.run_id for launch in found[n])) for n in ordered]


def _facts_under(launch: ComparedRun, key: str) -> Facts:
    """What lies under the key in the identity; a key that is no part of it is looked up among the free facts."""
    identity, free = launch.facts.identity, launch.facts.free
    part_of_it = any(is_under(name, [key]) for name in identity)
    found = {} if part_of_it else {name: value for name, value in free.items() if is_under(name, [key])}
    found |= {name: value for name, value in identity.items() if is_under(name, keys_bound_to(key))}
    return {name: value for name, value in found.items() if value is not None}


def _main_value(launch: ComparedRun, key: str) -> str:
    both = launch.facts.free | launch.facts.identity
    return format_fact(both.get(main_key(key)))


def _name_value(number: int, heads: Sequence[str], facts: Sequence[Facts]) -> str:
    """The head, and of several with one head what tells this one from them."""
    alike = [one for head, one in zip(heads, facts, strict=True) if head == heads[number]]
    if len(alike) == 1:
        return heads[number]
    mine = facts[number]
    return " ".join([heads[number], *(f"{name.split('.')[-1]}={format_fact(mine.get(name))}" for name in find_differing_keys(*alike))])


def _natural_order(name: str) -> list[tuple[int, float, str]]:
    """10 after 2, and words by their letters."""
    parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", name) if part]
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]
