"""The values that a key has in a set of runs, and how to call them. Layer 1."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.pairing import Launch, differing, told
from scalebench.record_facts import Facts, main_key, under, with_bound
from scalebench.spec import InputError
from scalebench.suggest import no_such


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
