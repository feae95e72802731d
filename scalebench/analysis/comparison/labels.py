"""Labels of compared rows, the values of the compared key, and what else differs between the rows of a pair."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebench.analysis.comparison.pairing import (
    CLOCK_FIELDS,
    ComparedRun,
    ComparisonRow,
    find_differing_keys,
    format_fact,
)
from scalebench.analysis.comparison.run_facts import Facts, keys_bound_to, main_key
from scalebench.analysis.identity import is_under
from scalebench.core.errors import InputError, unknown_name_message

FIRST_KEYS = ("model.name", "dataset.name", "hardware.name", "scaling", "strategy.name", "gpus")
ALWAYS_SHOWN_KEYS = ("strategy.name", "gpus")
DEVICES_KEY = "hardware.device_ids"
SAMPLE_FACTS = ("model", "dataset.name", "dataset.image_size", "dataset.dtype", "dataset.path", "dataset.classes")
MIN_CLOCK_DIFFERENCE = 0.01  # share by which clocks must differ to be reported
DIFFERENT_SAMPLES_NOTE = (
    "rows of other models or data are compared: a sample is not the same work in both, and the ratio is one of "
    "samples/s, not of how soon a training ends"
)


class Labels:
    """The fewest keys that distinguish all rows; strategy and number of devices are always among them.

    Keys `without` are compared or ignored, and are part of no label.
    """

    def __init__(self, rows: Sequence[ComparisonRow], without: Sequence[str]) -> None:
        differing = find_differing_keys(*(row.identity for row in rows)) if rows else []
        names = dict.fromkeys([*FIRST_KEYS, *differing])
        self.keys: list[str] = []
        groups = [list(rows)]
        for name in names:
            if is_under(name, without):
                continue
            finer: list[list[ComparisonRow]] = []
            for group in groups:
                by_value: dict[str, list[ComparisonRow]] = {}
                for row in group:
                    by_value.setdefault(format_fact(row.identity.get(name)), []).append(row)
                finer += by_value.values()
            if name in ALWAYS_SHOWN_KEYS or len(finer) > len(groups):
                self.keys.append(name)
            groups = finer

    def of(self, row: ComparisonRow) -> dict[str, str]:
        """Return the label of a row: short key -> value."""
        return {shorten_key(key): format_fact(row.identity.get(key)) for key in self.keys}


def shorten_key(key: str) -> str:
    """Return `strategy` for `strategy.name`, and `precision` for `train.precision`."""
    parts = key.split(".")
    return parts[0] if parts[-1] == "name" else parts[-1]


def find_differences(
    pairs: Iterable[tuple[ComparisonRow, ComparisonRow]], by: str | None
) -> list[tuple[str, str, str, int]]:
    """Return (key, values of a, values of b, number of pairs) of all that differs within pairs, settings first.

    Left out are the key by which rows are compared, options of a strategy or model that the other one lacks, and what
    follows from the strategy, such as its launcher.
    """
    counts: dict[tuple[str, str, str], int] = {}
    for a, b in pairs:
        for key in [*find_differing_keys(a.identity, b.identity), *_differing_other_facts(a, b)]:
            if (by is not None and key == main_key(by)) or _follows_from_name(a, b, key):
                continue
            entry = (key, _format_row_fact(a, key), _format_row_fact(b, key))
            counts[entry] = counts.get(entry, 0) + 1
        for entry in _find_clock_differences(a, b):
            counts[entry] = counts.get(entry, 0) + 1
    return [(*entry, count) for entry, count in counts.items()]


def _follows_from_name(a: ComparisonRow, b: ComparisonRow, key: str) -> bool:
    """Return whether a difference in `key` follows from that of two strategies or models: it is an option that only one
    of them has, or any key of the strategies except for their names and options."""
    group, _, option = key.partition(".options.")
    group = "strategy" if key.startswith("strategy.") else group
    differs = format_fact(a.identity.get(f"{group}.name")) != format_fact(b.identity.get(f"{group}.name"))
    if not differs or key == f"{group}.name":
        return False
    return None in (a.identity.get(key), b.identity.get(key)) if option else group == "strategy"


def _differing_other_facts(a: ComparisonRow, b: ComparisonRow) -> list[str]:
    names = dict.fromkeys(name for row in (a, b) for run in row.measured for name in run.facts.other)
    return [name for name in names if name not in a.identity and _format_row_fact(a, name) != _format_row_fact(b, name)]


def _format_row_fact(row: ComparisonRow, key: str) -> str:
    facts = (run.facts.identity if key in run.facts.identity else run.facts.other for run in row.measured)
    return " or ".join(dict.fromkeys(format_fact(each.get(key)) for each in facts))


def _find_clock_differences(a: ComparisonRow, b: ComparisonRow) -> list[tuple[str, str, str]]:
    """Return the measured clocks that differ, as (field, MHz of a, MHz of b)."""
    differences = []
    for name in CLOCK_FIELDS:
        clocks = [[getattr(run.record.monitor, name) for run in row.measured] for row in (a, b)]
        present = [[clock for clock in of_row if clock is not None] for of_row in clocks]
        if all(present):
            clock_a, clock_b = (math.fsum(of_row) / len(of_row) for of_row in present)
            if clock_a and clock_b and abs(clock_b / clock_a - 1) > MIN_CLOCK_DIFFERENCE:
                differences.append((name, f"{clock_a:.0f}", f"{clock_b:.0f}"))
    return differences


def warn_about_samples(pairs: Iterable[tuple[ComparisonRow, ComparisonRow]]) -> list[str]:
    """Return a warning if a sample is not the same in both rows of any pair."""
    keys = {key for a, b in pairs for key in find_differing_keys(a.identity, b.identity)}
    return [DIFFERENT_SAMPLES_NOTE] if any(is_under(key, SAMPLE_FACTS) for key in keys) else []


@dataclass(frozen=True)
class KeyValue:
    """One value of a key, or one set of values of the keys below it, and the runs that have it."""

    name: str
    run_ids: frozenset[str]


def find_key_values(runs: Sequence[ComparedRun], key: str, base: str | None) -> list[KeyValue]:
    """Return the values of `key`, the base first, then those of the first folder, and in natural order.

    A value of `strategy` is a name with all options; where two share the name, it is followed by what differs.
    InputError for a base that is none of the values.
    """
    by_facts: dict[str, list[ComparedRun]] = {}
    for run in runs:
        by_facts.setdefault(json.dumps(_facts_under(run, key), sort_keys=True), []).append(run)
    groups = list(by_facts.values())
    facts = [_facts_under(group[0], key) for group in groups]
    main_values = [format_fact((first.facts.other | first.facts.identity).get(main_key(key))) for first, *_ in groups]
    names = []
    for (run, *_), main, own in zip(groups, main_values, facts, strict=True):
        same_name = [other for value, other in zip(main_values, facts, strict=True) if value == main]
        keys = find_differing_keys(*same_name)
        words = [main, *(f"{name.split('.')[-1]}={format_fact(own.get(name))}" for name in keys)]
        if key == DEVICES_KEY:  # and the kinds of connection between the devices, such as PIX
            devices = re.findall(r"\d+", str(run.facts.identity.get(DEVICES_KEY)))
            words += run.record.machine.list_links([int(number) for number in devices])
        names.append(" ".join(words))
    if base is not None and base not in (*names, *main_values):
        raise InputError(f"--base: {unknown_name_message(f'value of {key}', base, names)}")

    def sort_key(number: int) -> tuple[bool, int, list[tuple[int, float, str]]]:
        is_base = base in (names[number], main_values[number])
        return not is_base, groups[number][0].side, _natural_order(names[number])

    ordered = sorted(range(len(groups)), key=sort_key)
    return [KeyValue(names[n], frozenset(run.run_id for run in groups[n])) for n in ordered]


def _facts_under(run: ComparedRun, key: str) -> Facts:
    """Return the identity below a key; a key that is no part of it is looked up among the other facts."""
    identity, other = run.facts.identity, run.facts.other
    in_identity = any(is_under(name, [key]) for name in identity)
    facts = {} if in_identity else {name: value for name, value in other.items() if is_under(name, [key])}
    facts |= {name: value for name, value in identity.items() if is_under(name, keys_bound_to(key))}
    return {name: value for name, value in facts.items() if value is not None}


def _natural_order(name: str) -> list[tuple[int, float, str]]:
    """Return a sort key that puts 10 after 2, and text in the order of its letters."""
    parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", name) if part]
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]
