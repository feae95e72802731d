"""Flags, intervals and cells of the frame as text: what a flag of a row means, and what to do about it.

docs/reference/results.md says what raises each flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalebench.analysis.verdicts import read_doubt, read_flags

UNSTEADY = ("warmup_left", "drifts")  # flags that say why a series is not steady
NOT_STEADY = "not_steady"  # stands for a series that is unsteady while no flag says why


def format_flag(flag: str) -> str:
    """Return a flag as tables show it."""
    return flag.replace("_", " ")


def get_advice(flag: str) -> str:
    """Return a sentence or two about a flag; a general one if a later version of scalebench raised it."""
    unknown = "This version of scalebench does not know this flag: the reference of the one that ran it does."
    return read_flags().get(flag, {"advice": unknown})["advice"]


def list_flags(flags: str, unsteady: bool) -> list[str]:
    """Split the flags of a row, and add NOT_STEADY if its series is unsteady and no flag says why."""
    names = flags.split()
    return [*names, NOT_STEADY] if unsteady and not set(names) & set(UNSTEADY) else names


def describe_row(row: dict[str, Any], explains: bool = False) -> list[str]:
    """Return the remarks on a successful row: its flags, an unsteady series, unresolved differences. With `explains`,
    flags are followed by their meaning.

    A difference from a baseline is unresolved if the 95 % interval of the speedup contains 1, its limits included. No
    remark is made on a row that is its own baseline, twice if one run is both baselines, or without an interval.
    """
    flags = list_flags(row["flags"] or "", row["steady"] is False)
    remarks = [explain_flag(flag) if explains else format_flag(flag) for flag in flags]
    bare_id, self_id, run_id = (row[name] for name in ("baseline_bare_id", "baseline_self_id", "run_id"))
    if bare_id not in (None, run_id) and _contains_1(row, "speedup_bare"):
        remarks.append("no difference from bare resolved")
    if self_id not in (None, run_id, bare_id) and _contains_1(row, "speedup_self"):
        remarks.append("no difference from one device resolved")
    return remarks


def explain_flag(flag: str) -> str:
    """Return `drifts: its level changed while it was measured`."""
    name, meaning = format_flag(flag), read_doubt(flag)
    if not meaning and flag in read_flags():
        meaning = get_advice(flag).partition(". ")[0].removesuffix(".")
    meaning = meaning[:1].lower() + meaning[1:]
    return f"{name}: {meaning}" if meaning and not meaning.startswith(name) else meaning or name


def _contains_1(row: dict[str, Any], name: str) -> bool:
    """Return whether there is an interval with 1 in it; an upper limit that the data cannot supply is null."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return low is not None and low <= 1 and (high is None or high >= 1)


def describe_intervals(rows: Iterable[Mapping[str, Any]]) -> str:
    """Say what the intervals of these rows are taken over; empty if there are none."""
    rows = list(rows)
    repeats = [row["repeats"] for row in rows if row["interval_over"] == "repeats"]
    parts = []
    if repeats:
        fewest, most = min(repeats), max(repeats)
        parts.append(f"over {fewest} repeats" if fewest == most else f"over {fewest} to {most} repeats")
    if any(row["interval_over"] == "blocks" for row in rows):
        parts.append("over blocks of one repeat: they miss what differs between repeats (measure.repeats=3 shows it)")
    return f"intervals: 95 %, {'; '.join(parts)}" if parts else ""
