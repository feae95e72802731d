"""The section `operations` of a report: where the time of an update goes, and the operations that take it. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalebench import probed
from scalebench.curves import Curve, grouped
from scalebench.report import runs, units, update_parts
from scalebench.report.blocks import Block, Cell, Row, Section, Table, Words
from scalebench.report.drawing import MOST_ROWS, tags
from scalebench.report.evidence import Evidence
from scalebench.report.operations import LONGEST_NAME, MOST_OPERATIONS, collectives
from scalebench.report.run_files import inside, link
from scalebench.results import Result

MOST_RUNS = 12
COLUMNS = ("operation", "device", "calls an update", "own time an update", "of all operations", "collective")
OPENING = "A trace opens in the browser: drop the file into ui.perfetto.dev, or load it in chrome://tracing."


def section(evidence: Evidence) -> Section | None:
    """None where nothing went well."""
    found = evidence.curves
    if not found:
        return None
    rows = runs.detailed(evidence)
    names = runs.names(rows)
    by_id = {row["run_id"]: row for row in rows}
    wanted = [run_id for run_id in _best_and_largest(found) if run_id in by_id]
    blocks = update_parts.blocks(evidence, found)
    without: dict[str, list[str]] = {}  # reason -> runs
    for number, run_id in enumerate(wanted[:MOST_RUNS]):
        result = evidence.result(run_id)
        if (table := _operations(result, number, names[run_id], by_id[run_id])) is None:
            without.setdefault(_why_not(result), []).append(names[run_id])
        else:
            blocks += [table, Words(f"{names[run_id]}: {collectives(result)}.", tags=tags(by_id[run_id]))]
    blocks += [Words(f"No operations of {'; '.join(whose)}: {why}.") for why, whose in without.items()]
    if len(wanted) > MOST_RUNS:
        blocks.append(Words(f"Operations are told of {MOST_RUNS} of the {len(wanted)} best and largest runs."))
    blocks += _traces(evidence, rows, names)
    if said := runs.left_out(evidence):
        blocks.append(Words(said))
    return Section("operations", "What takes the time of an update", blocks, folded=True)


def _best_and_largest(found: Sequence[Curve]) -> list[str]:
    """run_id of the highest throughput of each group, then of the most devices of each curve, once each."""
    best = [max((row for one in members for row in one.rows), key=_rate)["run_id"] for _, members in grouped(found)]
    return list(dict.fromkeys([*map(str, best), *(str(curve.rows[-1]["run_id"]) for curve in found)]))


def _rate(row: dict[str, float]) -> float:
    return row["throughput_samples_per_s"]


def _operations(result: Result, number: int, name: str, row: runs.Row) -> Table | None:
    probes = result.ranks[0].probes if result.ranks else None
    if probes is None or probes.profile is None:
        return None
    profile, made = probes.profile, []
    for one in profile.operations[:MOST_OPERATIONS]:
        shown = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[: LONGEST_NAME - 3]}..."
        share = one.self_s / profile.kernel_s if profile.kernel_s else None
        cells = [
            Cell(shown, one.name), Cell(one.device, one.device), Cell(f"{one.calls:,.4g}", one.calls),
            Cell(units.seconds(one.self_s), one.self_s), Cell("" if share is None else units.share(share), share),
            Cell("collective" if one.collective else "", "collective" if one.collective else None),
        ]  # fmt: skip
        made.append(Row(cells, tags(row)))
    caption = (
        f"The largest by own time, on rank 0, over {profile.updates} updates under the framework's profiler, which "
        "slows them down: the times compare with each other, and not with the update's own."
    )
    numeric = frozenset(COLUMNS[2:5])
    return Table(f"operations-{number}", f"Top operations: {name}", COLUMNS, made, numeric, caption)


def _why_not(result: Result) -> str:
    if any(rank.probes is None for rank in result.ranks):
        return "they were run without probes"
    return probed.reasons(result).get("profile", "no profile was left")


def _traces(evidence: Evidence, rows: Sequence[runs.Row], names: dict[str, str]) -> Iterator[Block]:
    """Links to them, of all ranks or of one."""
    made = []
    for row in rows:
        result = evidence.result(row["run_id"])
        named = [("all ranks", result.trace)]
        named += [(f"rank {rank.rank}", rank.probes.trace) for rank in result.ranks if rank.probes is not None]
        for whose, name in named:
            path = None if name is None else inside(evidence.folder(row["run_id"]), name)
            if path is not None:
                there = link(evidence, path)
                cells = [
                    Cell(names[row["run_id"]], names[row["run_id"]]),
                    Cell(whose, whose),
                    Cell(there, there, there),
                ]
                made.append(Row(cells, tags(row)))
    if made:
        yield Table("traces", "Traces", ("run", "of", "file"), made[:MOST_ROWS], caption=OPENING)
