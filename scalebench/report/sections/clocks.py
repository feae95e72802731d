"""The section `clocks` of a report: GPUs, cores and memory over the time of single runs. Layer 3."""

from __future__ import annotations

from scalebench.report import monitored, runs
from scalebench.report.blocks import Block, Section, Words
from scalebench.report.drawing import tags
from scalebench.report.evidence import Evidence
from scalebench.report.words import text

MOST_RUNS = 8  # a run has up to seven charts
MOST_FLAGGED = 5  # so that some stay for the runs that went as they should
# What a series shows; the first ones are of the clocks themselves.
FLAGS = ("throttled", "unequal_clocks", "hot_at_start", "foreign_process", "busy_machine")


def section(evidence: Evidence) -> Section | None:
    """None where no run was monitored, or could have been."""
    rows = {row["run_id"]: row for row in runs.detailed(evidence) if row["status"] == "ok"}
    wanted = _wanted(evidence, rows)
    if not wanted:
        return None
    names = runs.names(list(rows.values()))
    blocks: list[Block] = []
    missing: dict[str, list[str]] = {}  # reason -> runs
    told = 0
    for run_id in wanted:
        if told == MOST_RUNS:
            break
        row, result = rows[run_id], evidence.result(run_id)
        try:
            charts = monitored.charts(result, evidence.folder(run_id), f"clocks-{told}", names[run_id], tags(row))
        except monitored.NoSeries as why:
            missing.setdefault(str(why), []).append(names[run_id])
            continue
        told += 1
        blocks += [Words(_heading(names[run_id], row), tags=tags(row)), *charts]
    blocks += [Words(f"No series of {_listed(whose)}: {why}.") for why, whose in missing.items()]
    left = len(wanted) - told - sum(map(len, missing.values()))
    if left > 0:
        blocks.append(Words(f"{left} more runs with a flag, or of the most devices of a curve, are not drawn here."))
    if said := runs.left_out(evidence):
        blocks.append(Words(said))
    return Section("clocks", "Clocks, power and processors while a run was measured", blocks, folded=True)


def _wanted(evidence: Evidence, rows: dict[str, runs.Row]) -> list[str]:
    """Runs with a flag that a series explains, some of them first, and those of the most devices of each curve."""
    flagged = {run_id: [FLAGS.index(flag) for flag in text(row["flags"]).split() if flag in FLAGS]
               for run_id, row in rows.items()}  # fmt: skip
    first = sorted((run_id for run_id in rows if flagged[run_id]), key=lambda run_id: min(flagged[run_id]))
    largest = [str(curve.rows[-1]["run_id"]) for curve in evidence.curves]
    some, rest = first[:MOST_FLAGGED], first[MOST_FLAGGED:]
    return list(dict.fromkeys(run_id for run_id in [*some, *largest, *rest] if run_id in rows))


def _heading(name: str, row: runs.Row) -> str:
    flags = [flag.replace("_", " ") for flag in text(row["flags"]).split() if flag in FLAGS]
    return f"{name}: {', '.join(flags)}" if flags else name


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{'; '.join(names[:most])}{more}"
