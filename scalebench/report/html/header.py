"""What a page says first: of which runs it is, when it was made, and on what they ran. Layer 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from scalebench import __version__
from scalebench.machine import describe
from scalebench.report.evidence import Evidence
from scalebench.report.html.render import folder_of
from scalebench.spec import InputError

STATUSES = "ok failed oom timeout cancelled unsupported".split()  # in the order of the page


@dataclass(frozen=True)
class Header:
    title: str
    made: str
    version: str
    paths: Sequence[str]
    runs: int
    statuses: Sequence[tuple[str, int]]
    unreadable: int
    machines: Sequence[str]  # "alpha: 8 x NVIDIA A100-SXM4-40GB, 48 cores, 1000 GiB"


def header(evidence: Evidence) -> Header:
    counts = {str(name): int(count) for name, count in evidence.frame["status"].value_counts().items()}
    order = [*STATUSES, *sorted(set(counts) - set(STATUSES))]
    first = evidence.paths[0] if evidence.paths else None
    return Header(
        title=f"Scaling report: {folder_of(first).resolve().name}" if first else "Scaling report",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        paths=[str(path) for path in evidence.paths],
        runs=len(evidence.frame),
        statuses=[(name, counts[name]) for name in order if counts.get(name)],
        unreadable=len(evidence.unreadable),
        machines=_machines(evidence),
    )


def _machines(evidence: Evidence) -> list[str]:
    """In words, of the first run on each hardware; its name alone where that record is gone meanwhile."""
    found = []
    for name, run_id in evidence.frame.groupby("hardware", sort=True)["run_id"].first().items():
        try:
            found.append(f"{name}: {describe(evidence.result(str(run_id)).machine)}")
        except (InputError, OSError):
            found.append(str(name))
    return found
