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

from scalebench.analysis.comparison.pairing import CLOCKS, Launch, Row, differing, told
from scalebench.analysis.comparison.run_facts import Facts, main_key, under, with_bound
from scalebench.core.errors import InputError, no_such

FIRST = ("model.name", "dataset.name", "hardware.name", "scaling", "strategy.name", "gpus")
ALWAYS = ("strategy.name", "gpus")
SAMPLES = ("model", "dataset.name", "dataset.image_size", "dataset.dtype", "dataset.path", "dataset.classes")
CLOCK_SHARE = 0.01  # by which clocks must differ to be told
OTHER_SAMPLES = (
    "rows of other models or data are compared: a sample is not the same work in both, and the ratio is one of "
    "samples/s, not of how soon a training ends"
)


class Paired(Protocol):
    @property
    def a(self) -> Row: ...

    @property
    def b(self) -> Row: ...


class Labels:
    """The fewest keys that tell all rows apart; strategy and number of devices are always among them.

    Keys `without` are what is compared, or left out, and name no row.
    """

    def __init__(self, rows: Sequence[Row], without: Sequence[str]) -> None:
        names = dict.fromkeys([*FIRST, *differing(*(row.identity for row in rows))] if rows else FIRST)
        self.keys: list[str] = []
        groups = [list(rows)]
        for name in names:
            if under(name, without):
                continue
            finer = [part for group in groups for part in _split(group, name)]
            if name in ALWAYS or len(finer) > len(groups):
                self.keys.append(name)
            groups = finer

    def of(self, row: Row) -> dict[str, str]:
        return {short(key): told(row.identity.get(key)) for key in self.keys}


def _split(group: Sequence[Row], name: str) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in group:
        found.setdefault(told(row.identity.get(name)), []).append(row)
    return list(found.values())


def short(key: str) -> str:
    """`strategy.name` is the strategy, `train.precision` the precision."""
    parts = key.split(".")
    return parts[0] if parts[-1] == "name" else parts[-1]


def differences(pairs: Iterable[tuple[Row, Row]], by: str | None) -> list[tuple[str, str, str, int]]:
    """(key, values of a, values of b, number of pairs) of all that differs within pairs, what was asked for first.

    Not the key that they are compared by, nor options of a strategy or a model that the other one does not have.
    """
    found: dict[tuple[str, str, str], int] = {}
    for a, b in pairs:
        for key in [*differing(a.identity, b.identity), *_free(a, b)]:
            if (by is not None and key == main_key(by)) or _foreign(a, b, key):
                continue
            entry = (key, _values(a, key), _values(b, key))
            found[entry] = found.get(entry, 0) + 1
        for entry in _clocks(a, b):
            found[entry] = found.get(entry, 0) + 1
    return [(*entry, count) for entry, count in found.items()]


def _foreign(a: Row, b: Row, key: str) -> bool:
    group = key.partition(".options.")[0]
    unlike = told(a.identity.get(f"{group}.name")) != told(b.identity.get(f"{group}.name"))
    return group != key and unlike and None in (a.identity.get(key), b.identity.get(key))


def _free(a: Row, b: Row) -> list[str]:
    names = dict.fromkeys(name for row in (a, b) for launch in row.measured for name in launch.facts.free)
    return [name for name in names if name not in a.identity and _values(a, name) != _values(b, name)]


def _values(row: Row, key: str) -> str:
    return " or ".join(dict.fromkeys(told(_fact(launch, key)) for launch in row.measured))


def _fact(launch: Launch, key: str) -> str | int | float | bool | None:
    identity, free = launch.facts.identity, launch.facts.free
    return identity[key] if key in identity else free.get(key)


def _clocks(a: Row, b: Row) -> list[tuple[str, str, str]]:
    """Clocks that were measured, where they differ."""
    found = []
    for name in CLOCKS:
        mine, theirs = _mean(a, name), _mean(b, name)
        if mine and theirs and abs(theirs / mine - 1) > CLOCK_SHARE:
            found.append((name, f"{mine:.0f}", f"{theirs:.0f}"))
    return found


def _mean(row: Row, name: str) -> float | None:
    known = [getattr(launch.record.monitor, name) for launch in row.measured]
    known = [value for value in known if value is not None]
    return math.fsum(known) / len(known) if known else None


def samples_differ(pairs: Sequence[Paired]) -> list[str]:
    """The warning that samples of a pair are not alike, if those of any are not."""
    unlike = any(under(key, SAMPLES) for pair in pairs for key in differing(pair.a.identity, pair.b.identity))
    return [OTHER_SAMPLES] if unlike else []


@dataclass(frozen=True)
class KeyValue:
    """One value of the key, or one set of values of the keys below it, and the runs that have it."""

    name: str
    run_ids: frozenset[str]


def values_of(launches: Sequence[Launch], key: str, base: str | None) -> list[KeyValue]:
    """The values of `key` with the base first; else those of the first folder first, and in order.

    Values of `strategy` are its name with all its options; two of one name are told apart by what differs. InputError
    for a base that is none of them.
    """
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(json.dumps(_facts(launch, key), sort_keys=True), []).append(launch)
    found = list(groups.values())
    facts = [_facts(group[0], key) for group in found]
    heads = [_head(group[0], key) for group in found]
    names = [_name(number, heads, facts) for number in range(len(found))]
    if base is not None and base not in (*names, *heads):
        raise InputError(f"--base: {no_such(f'value of {key}', base, names)}")

    def place(number: int) -> tuple[bool, int, list[tuple[int, float, str]]]:
        return base not in (names[number], heads[number]), found[number][0].side, _order(names[number])

    ordered = sorted(range(len(found)), key=place)
    return [KeyValue(names[n], frozenset(launch.run_id for launch in found[n])) for n in ordered]


def _facts(launch: Launch, key: str) -> Facts:
    """What lies under the key in the identity; a key that is no part of it is looked up among the free facts."""
    identity, free = launch.facts.identity, launch.facts.free
    part_of_it = any(under(name, [key]) for name in identity)
    found = {} if part_of_it else {name: value for name, value in free.items() if under(name, [key])}
    found |= {name: value for name, value in identity.items() if under(name, with_bound(key))}
    return {name: value for name, value in found.items() if value is not None}


def _head(launch: Launch, key: str) -> str:
    both = launch.facts.free | launch.facts.identity
    return told(both.get(main_key(key)))


def _name(number: int, heads: Sequence[str], facts: Sequence[Facts]) -> str:
    """The head, and of several with one head what tells this one from them."""
    alike = [one for head, one in zip(heads, facts, strict=True) if head == heads[number]]
    if len(alike) == 1:
        return heads[number]
    mine = facts[number]
    return " ".join([heads[number], *(f"{name.split('.')[-1]}={told(mine.get(name))}" for name in differing(*alike))])


def _order(name: str) -> list[tuple[int, float, str]]:
    """10 after 2, and words by their letters."""
    parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", name) if part]
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]
