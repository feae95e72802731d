"""What the terminal tells of one run below its row: where the time of an update goes, and what the run used. Layer 3.

What was not measured is a dash and its reason. Formulas: docs/measuring.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench import analysis
from scalebench.causes import Case, sentences
from scalebench.ladders import Ladder
from scalebench.report import lost, stage_table, trained_run, units, usage
from scalebench.report.breakdown import breakdown
from scalebench.report.operations import operations
from scalebench.results import Result


def panel(result: Result, folder: Path, case: Case | None = None) -> Iterator[Table | str]:
    """What to print of a run in `folder` below its row; nothing of one that is not ok. `case` is its ladder, where it
    has a baseline."""
    if result.status != "ok":
        return
    yield f"{folder}: {result.scale.strategy} gpus={result.scale.gpus}"
    yield _facts([*headline(result), *trained_run.rows(result), *files(result, folder)])
    yield from stage_table.stages(result)
    if any(rank.probes is None for rank in result.ranks):
        yield f"where the time of an update goes was not measured: {_why_no_probes(result)}"
    else:
        yield "where the time of an update goes"
        yield breakdown(result)
        yield from operations(result)
    if case is not None:
        yield "where the lost efficiency went"
        yield _lost(case.ladder)
        yield from (cause.sentence() for cause in sentences(case))
    used = usage.rows(result)
    if result.monitor.reason is not None:
        used.append(("not measured", result.monitor.reason))
    if used:
        yield "what the run used"
        yield _facts(used)


def headline(result: Result) -> list[tuple[str, str]]:
    """Throughput, warm-up, whether it was steady."""
    value, interval = analysis.throughput(result)
    rows = []
    if interval is not None:
        rows.append(("throughput", f"{units.rate(interval, 'samples/s')}, 95 % over blocks of this launch"))
    elif value is not None:
        rows.append(("throughput", f"{units.figure(value)} samples/s, too few blocks for an interval"))
    return [*rows, ("warm-up", _warmup(result)), ("steady", _steady(result))]


def _warmup(result: Result) -> str:
    first, measure = result.ranks[0], result.spec.get("measure", {})
    updates = len(first.warmup_block_s) * (first.warmup_block_steps or 0)
    left_out = f"{updates:,} updates and {units.seconds(sum(first.warmup_block_s))} were left out"
    if "warmup_max_steps" not in measure:  # an older record, of a fixed number of updates
        return left_out
    found = first.warmup_found_steps
    if found is None:
        return f"its end was not found within {updates:,} updates; {left_out}"
    found_s = sum(first.warmup_block_s[: found // (first.warmup_block_steps or 1)])
    return f"over after {found:,} updates, {units.seconds(found_s)}; {left_out}"


def _steady(result: Result) -> str:
    against = analysis.unsteady(result, analysis.target_of(result))
    if against is None:
        return "cannot be told, too few blocks"
    return f"no: {', '.join(word.replace('_', ' ') for word in against)}" if against else "yes, no drift detected"


def files(result: Result, folder: Path) -> list[tuple[str, str]]:
    """Where the trace and the monitor's series are."""
    rows = []
    if result.trace is not None:
        rows.append(("trace", f"{folder / result.trace} (opens in ui.perfetto.dev or chrome://tracing)"))
    own = [(rank.rank, rank.probes.trace) for rank in result.ranks if rank.probes is not None]
    rows += [(f"trace of rank {rank}", f"{folder / name}, not merged") for rank, name in own if name is not None]
    if result.monitor.file is not None:
        rows.append(("monitor", f"{folder / result.monitor.file}"))
    return rows


def _why_no_probes(result: Result) -> str:
    asked = result.spec.get("measure", {}).get("probes")
    return {None: "the record is of an older version", False: "measure.probes=false"}.get(asked, "a rank has no probes")


def _lost(one: Ladder) -> Table:
    """The parts of what is lost, and why some could not be told apart."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("part")
    for name in ("of an update (95 %)", "of ideal throughput (95 %)"):
        table.add_column(name, justify="right")
    table.add_column("remark")
    for part in one.parts:
        reasons = dict.fromkeys(one.missing[name] for name in part.names if name in one.missing)
        table.add_row(*map(Text, (lost.name_of(part), lost.duration(part.step_s), lost.percent(part.share))))
        for reason in reasons:
            table.add_row("", "", "", Text(reason))
    table.add_section()
    whole_s = units.seconds(one.step_s - one.ideal_s)
    against = "against the bare baseline" if one.against == "bare" else "against the strategy itself on one device"
    table.add_row(*map(Text, ("all that is lost", whole_s, lost.percent(one.lost), against)))
    return table


def _facts(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table
