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
from scalebench.analysis.comparison.run_facts import Facts, Value, keys_bound_to, main_key
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
            finer = [part for group in groups for part in _split_by_fact(group, name)]
            if name in ALWAYS_SHOWN_KEYS or len(finer) > len(groups):
                self.keys.append(name)
            groups = finer

    def of(self, row: ComparisonRow) -> dict[str, str]:
        """Return the label of a row: short key -> value."""
        return {shorten_key(key): format_fact(row.identity.get(key)) for key in self.keys}


def _split_by_fact(group: Sequence[ComparisonRow], name: str) -> list[list[ComparisonRow]]:
    by_value: dict[str, list[ComparisonRow]] = {}
    for row in group:
        by_value.setdefault(format_fact(row.identity.get(name)), []).append(row)
    return list(by_value.values())


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
    return " or ".join(dict.fromkeys(format_fact(_fact_of_run(run, key)) for run in row.measured))


def _fact_of_run(run: ComparedRun, key: str) -> Value:
    identity, other = run.facts.identity, run.facts.other
    return identity[key] if key in identity else other.get(key)


def _find_clock_differences(a: ComparisonRow, b: ComparisonRow) -> list[tuple[str, str, str]]:
    """Return the measured clocks that differ, as (field, MHz of a, MHz of b)."""
    differences = []
    for name in CLOCK_FIELDS:
        clock_a, clock_b = _mean_over_repeats(a, name), _mean_over_repeats(b, name)
        if clock_a and clock_b and abs(clock_b / clock_a - 1) > MIN_CLOCK_DIFFERENCE:
            differences.append((name, f"{clock_a:.0f}", f"{clock_b:.0f}"))
    return differences


def _mean_over_repeats(row: ComparisonRow, name: str) -> float | None:
    values = [getattr(run.record.monitor, name) for run in row.measured]
    values = [value for value in values if value is not None]
    return math.fsum(values) / len(values) if values else None


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
    main_values = [_main_value(group[0], key) for group in groups]
    names = [_name_value(number, main_values, facts) for number in range(len(groups))]
    if key == DEVICES_KEY:
        names = [" ".join([name, *_list_links(group[0])]) for name, group in zip(names, groups, strict=True)]
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


def _main_value(run: ComparedRun, key: str) -> str:
    return format_fact((run.facts.other | run.facts.identity).get(main_key(key)))


def _list_links(run: ComparedRun) -> list[str]:
    """Return the kinds of connection between the chosen devices of a run, such as PIX; empty if they are unknown."""
    devices = re.findall(r"\d+", str(run.facts.identity.get(DEVICES_KEY)))
    return run.record.machine.list_links([int(number) for number in devices])


def _name_value(number: int, main_values: Sequence[str], facts: Sequence[Facts]) -> str:
    """Return the main value; if several share it, with the facts in which this one differs from them."""
    main = main_values[number]
    same_name = [other for value, other in zip(main_values, facts, strict=True) if value == main]
    if len(same_name) == 1:
        return main
    keys = find_differing_keys(*same_name)
    return " ".join([main, *(f"{key.split('.')[-1]}={format_fact(facts[number].get(key))}" for key in keys)])


def _natural_order(name: str) -> list[tuple[int, float, str]]:
    """Return a sort key that puts 10 after 2, and text in the order of its letters."""
    parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", name) if part]
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]
