"""Runs that a report tells one by one: which they are, and what they are called. Layer 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scalebench.curves import CHOICES, SPOKEN, TRAINING, cells
from scalebench.report.evidence import DETAILED, Evidence
from scalebench.report.words import text

Row = dict[str, Any]  # cells of the frame that NEEDED names, None for null
TOLD_IF_DIFFERENT = ("hardware", "scaling")  # of all runs told together, whatever else tells them apart
RATES = ("base_batch", "learning_rate")  # which also follow from the batch
APART = ("model", "dataset", "batch_per_device", *SPOKEN, *RATES, *TRAINING, *CHOICES, "repeat", "status")
NEEDED = (
    "run_id strategy gpus path reason flags steady step_s throughput_samples_per_s final_loss metric metric_name "
    "started_at global_batch stopped_by"
).split()


def detailed(evidence: Evidence) -> list[Row]:
    """Of the frame, each run once, in the order in which the evidence tells them."""
    place = {run_id: number for number, run_id in enumerate(evidence.detailed)}
    frame = evidence.frame
    wanted = frame[frame["run_id"].isin(place)].drop_duplicates("run_id")
    found = plain(wanted.to_dict("records"))
    return sorted(found, key=lambda row: place[row["run_id"]])


def plain(rows: Iterable[dict[Any, Any]]) -> list[Row]:
    """The cells that are needed here; the frame has many more."""
    kept = (*NEEDED, *TOLD_IF_DIFFERENT, *APART)
    return [cells({name: row[name] for name in kept if name in row}) for row in rows]


def names(rows: Sequence[Row]) -> dict[str, str]:
    """run_id -> `ddp_gloo on 4 devices`, and what tells it from the others where that does not."""
    everywhere = [name for name in TOLD_IF_DIFFERENT if _differ(rows, name)]
    alike: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        alike.setdefault((text(row["strategy"]), row["gpus"]), []).append(row)
    found: dict[str, str] = {}
    for (strategy, gpus), members in alike.items():
        telling = everywhere + [name for name in APART if _differ(members, name)]
        base = f"{strategy} on {gpus} {'device' if gpus == 1 else 'devices'}"
        for row in members:
            found[row["run_id"]] = _unused(", ".join([base, *_told(row, telling)]), set(found.values()))
    return found


def left_out(evidence: Evidence) -> str:
    """A sentence where not all runs are told one by one; else empty."""
    if len(evidence.detailed) == len(evidence.frame):
        return ""
    return (
        f"Single runs are told of the first launches of {len(evidence.detailed)} configurations, out of "
        f"{len(evidence.frame):,} runs: a report reads {DETAILED} records at the most."
    )


def first_launches(rows: Sequence[Row], most: int, what: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """At most `most` of them, those of earlier repeats before later ones, given back in their order."""
    fit = [row for row in rows if what(row)]
    kept = sorted(range(len(fit)), key=lambda i: (fit[i]["repeat"] or 0, i))[:most]
    return [fit[i] for i in sorted(kept)]


def _differ(rows: Sequence[Row], name: str) -> bool:
    return len({row[name] for row in rows}) > 1


def _told(row: Row, telling: Sequence[str]) -> list[str]:
    known = [(name, _short(row[name])) for name in telling if text(row[name]) and (name, row[name]) != ("status", "ok")]
    return [value if name in SPOKEN else f"{name.replace('_', ' ')} {value}" for name, value in known]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def _unused(name: str, used: set[str]) -> str:
    """Runs of one configuration and repeat, as of two sweeps, are numbered."""
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name} #{number}"
    return found
