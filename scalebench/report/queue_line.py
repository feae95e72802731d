"""How runs that a scheduler has are getting on, in one line. Layer 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalebench.measure.progress import read_progress

if TYPE_CHECKING:
    from scalebench.cluster import Queue

MOST_TOLD = 2  # running ones whose progress is told
SOME_RANKS = 8  # of a run, whose files are looked for


def counts(now: Queue) -> str:
    """`4 of 10 runs over, 2 running, 3 pending (Priority), 1 not submitted yet`"""
    of = now.over + now.running + now.pending + now.waiting
    why = f" ({now.reason})" if now.reason else ""
    parts = [
        f"{now.over} of {of} run{'' if of == 1 else 's'} over",
        f"{now.running} running" if now.running else "",
        f"{now.pending} pending{why}" if now.pending else "",
        f"{now.waiting} not submitted yet" if now.waiting else "",
        f"nothing heard of SLURM: {now.trouble}" if now.trouble else "",
    ]
    return ", ".join(filter(None, parts))


def words(now: Queue) -> str:
    """The same, and how far the first of those that run are."""
    told = []
    for run in now.runs[:MOST_TOLD]:
        ranks = range(min(run.spec.processes, SOME_RANKS))
        progress = next((found for rank in ranks if (found := read_progress(run.folder, rank)) is not None), None)
        if progress is not None:
            told.append(f"{run.spec.label}: {progress.phase}")
    return "; ".join([counts(now), *told])
