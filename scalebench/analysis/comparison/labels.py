"""Labels of compared rows, the values of the compared key, and what else differs between the rows of a pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from scalebench.analysis.comparison.pairing import ComparedRun, ComparisonRow, pairing_key
from scalebench.analysis.comparison.run_facts import NONE, Facts, find_differing_keys, keys_bound_to, main_key
from scalebench.analysis.identity import group_by, is_under
from scalebench.analysis.verdicts import DOUBTS, OTHER_PROGRAMS_FLAGS
from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.units import format_count

FIRST_KEYS = ("model.name", "dataset.name", "hardware.name", "scaling", "strategy.name", "gpus")
ALWAYS_SHOWN_KEYS = ("strategy.name", "gpus")
DEVICES_KEY = "hardware.device_ids"
SAMPLE_FACTS = ("model", "dataset.name", "dataset.image_size", "dataset.dtype", "dataset.path", "dataset.classes")
CLOCK_FIELDS = ("sm_clock_mhz_mean", "mem_clock_mhz_mean")
MIN_CLOCK_DIFFERENCE = 0.01  # share by which clocks must differ to be reported
DIFFERENT_SAMPLES_NOTE = (
    "rows of other models or data are compared: a sample is not the same work in both, and the ratio is one of "
    "samples/s, not of how soon a training ends"
)


def choose_label_keys(rows: Sequence[Facts], without: Sequence[str]) -> list[str]:
    """Return the fewest keys that distinguish all rows, always with strategy and number of devices.

    Keys `without` are compared or ignored, and are part of no label.
    """
    keys: list[str] = []
    labels: list[tuple[str, ...]] = [() for _ in rows]
    for name in dict.fromkeys([*FIRST_KEYS, *(find_differing_keys(*rows) if rows else ())]):
        finer = [(*label, facts.get(name, NONE)) for label, facts in zip(labels, rows, strict=True)]
        is_useful = name in ALWAYS_SHOWN_KEYS or len(set(finer)) > len(set(labels))
        if is_useful and not is_under(name, without):
            keys.append(name)
            labels = finer
    return keys


def make_label(facts: Facts, keys: Sequence[str]) -> dict[str, str]:
    """Return the values of keys by their short names: `strategy` for `strategy.name`, else the last part."""
    short = (key.removesuffix(".name").rpartition(".")[2] for key in keys)
    return {name: facts.get(key, NONE) for name, key in zip(short, keys, strict=True)}


def find_differences(
    pairs: Iterable[tuple[ComparisonRow, ComparisonRow]], by: str | None
) -> list[tuple[str, str, str, int]]:
    """Return (key, values of a, values of b, number of pairs) of all that differs within pairs, settings first.

    Left out are the key by which rows are compared, options of a strategy or model that the other one lacks, and what
    follows from the name of the strategy, such as its launcher.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for row_a, row_b in pairs:
        a, b = _join_facts(row_a), _join_facts(row_b)
        for key in find_differing_keys(a, b):
            group, _, option = key.partition(".options.")
            group, values = "strategy" if key.startswith("strategy.") else group, (a.get(key, NONE), b.get(key, NONE))
            has_other_name = a.get(f"{group}.name", NONE) != b.get(f"{group}.name", NONE) and key != f"{group}.name"
            follows = has_other_name and (NONE in values if option else group == "strategy")
            if (by is None or key != main_key(by)) and not follows:
                counts[key, *values] += 1
        for name in CLOCK_FIELDS:
            of_rows = [[getattr(run.record.monitor, name) for run in row.measured] for row in (row_a, row_b)]
            present = [[clock for clock in of_row if clock is not None] for of_row in of_rows]
            mhz_a, mhz_b = map(fmean, present) if all(present) else (0.0, 0.0)
            if mhz_a and mhz_b and abs(mhz_b / mhz_a - 1) > MIN_CLOCK_DIFFERENCE:
                counts[name, f"{mhz_a:.0f}", f"{mhz_b:.0f}"] += 1
    return [(*entry, count) for entry, count in counts.items()]


def _join_facts(row: ComparisonRow) -> Facts:
    """Return all facts of the repeats of a row, differing values joined by `or`."""
    facts = [{**run.facts.identity, **run.facts.other} for run in row.measured]
    names = dict.fromkeys(chain(*facts))
    return {name: " or ".join(dict.fromkeys(each.get(name, NONE) for each in facts)) for name in names}


def warn_about_samples(pairs: Iterable[tuple[ComparisonRow, ComparisonRow]]) -> list[str]:
    """Return a warning if a sample is not the same in both rows of any pair."""
    keys = {key for a, b in pairs for key in find_differing_keys(a.identity, b.identity)}
    return [DIFFERENT_SAMPLES_NOTE] if any(is_under(key, SAMPLE_FACTS) for key in keys) else []


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
            yield f"{name}: {DOUBTS[flag]} in {len(flagged)} of {format_count(len(records), 'run')}{took}"


def group_by_value(runs: Sequence[ComparedRun], key: str, base: str | None) -> dict[str, list[ComparedRun]]:
    """Return the runs of each value of `key`: the base first, then those of the first folder in the order in which its
    sweep was given them, then others, such as those of added baselines, in natural order.

    A value of `strategy` is a name with all options; where two share the name, it is followed by what differs.
    InputError for a base that is none of the values.
    """
    groups = group_by(runs, lambda run: pairing_key(_facts_under(run, key)))
    first_runs = [first for first, *_ in groups.values()]
    facts = [_facts_under(run, key) for run in first_runs]
    main_values = [(run.facts.other | run.facts.identity).get(main_key(key), NONE) for run in first_runs]
    by_name: dict[str, list[ComparedRun]] = {}
    bases = []
    for run, main, own, group in zip(first_runs, main_values, facts, groups.values(), strict=True):
        same_name = [other for value, other in zip(main_values, facts, strict=True) if value == main]
        keys = find_differing_keys(*same_name)
        words = [main, *(f"{name.rpartition('.')[2]}={own.get(name, NONE)}" for name in keys)]
        if key == DEVICES_KEY:  # and the kinds of connection between the devices, such as PIX
            devices = re.findall(r"\d+", run.facts.identity.get(DEVICES_KEY, NONE))
            words += run.record.machine.list_links([int(number) for number in devices])
        name = " ".join(words)
        by_name.setdefault(name, []).extend(group)
        bases += [name] if base in (name, main) else []
    if base is not None and not bases:
        raise InputError(f"--base: {unknown_name_message(f'value of {key}', base, list(by_name))}")

    def sort_key(name: str) -> tuple[Any, ...]:
        places = [run.place for run in by_name[name]]
        # 10 comes after 2, and text in the order of its letters.
        parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", name) if part]
        natural = [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]
        return name not in bases, by_name[name][0].side, min(places), natural

    return {name: by_name[name] for name in sorted(by_name, key=sort_key)}


def _facts_under(run: ComparedRun, key: str) -> Facts:
    """Return the identity below a key; a key that is not part of it is looked up among the other facts."""
    identity, other = run.facts.identity, run.facts.other
    in_identity = any(is_under(name, [key]) for name in identity)
    facts = {} if in_identity else {name: value for name, value in other.items() if is_under(name, [key])}
    facts |= {name: value for name, value in identity.items() if is_under(name, keys_bound_to(key))}
    return {name: value for name, value in facts.items() if value != NONE}
