"""What the terminal tells of one run below its row: where the time of an update goes, and what the run used. Layer 3.

What was not measured is a dash and its reason. Formulas: docs/measuring.md.

What a search for the largest batch found, in one line. Layer 3.

Rows of published studies in the terminal, below those that were measured. Layer 3.

A report's tables in a terminal. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis import published, throughput
from scalebench.analysis.attribution.causes import AttributedRun, find_causes
from scalebench.analysis.attribution.lost_efficiency import Attribution
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core import units
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.units import format_bytes
from scalebench.report import attribution_cases, training_tables, usage_text
from scalebench.report.document import Table as DocumentTable
from scalebench.report.sections import data_or_model as choice_tables
from scalebench.report.sections import pipeline_stages
from scalebench.report.sections.operations import operations
from scalebench.report.sections.published import alone
from scalebench.report.update_breakdown import breakdown

if TYPE_CHECKING:
    import pandas as pd


def panel(result: Result, folder: Path, case: AttributedRun | None = None) -> Iterator[Table | str]:
    """What to print of a run in `folder` below its row; nothing of one that is not ok. `case` is its ladder, where it
    has a baseline."""
    if result.status != "ok":
        return
    yield f"{folder}: {result.scale.strategy} gpus={result.scale.gpus}"
    yield _facts([*headline(result), *training_tables.rows(result), *files(result, folder)])
    yield from pipeline_stages.stages(result)
    if any(rank.probes is None for rank in result.ranks):
        yield f"where the time of an update goes was not measured: {_why_no_probes(result)}"
    else:
        yield "where the time of an update goes"
        yield breakdown(result)
        yield from operations(result)
    if case is not None:
        yield "where the lost efficiency went"
        yield _lost(case.attribution)
        yield from (cause.sentence() for cause in find_causes(case))
    used = usage_text.rows(result)
    if result.monitor.reason is not None:
        used.append(("not measured", result.monitor.reason))
    if used:
        yield "what the run used"
        yield _facts(used)


def headline(result: Result) -> list[tuple[str, str]]:
    """Throughput, warm-up, whether it was steady."""
    value, interval = throughput.throughput(result)
    rows = []
    if interval is not None:
        rows.append(("throughput", f"{units.format_rate(interval, 'samples/s')}, 95 % over blocks of this launch"))
    elif value is not None:
        rows.append(("throughput", f"{units.format_number(value)} samples/s, too few blocks for an interval"))
    return [*rows, ("warm-up", _warmup(result)), ("steady", _steady(result))]


def _warmup(result: Result) -> str:
    first, measure = result.ranks[0], result.spec.get("measure", {})
    updates = len(first.warmup_block_s) * (first.warmup_block_steps or 0)
    left_out = f"{updates:,} updates and {units.format_seconds(sum(first.warmup_block_s))} were left out"
    if "warmup_max_steps" not in measure:  # an older record, of a fixed number of updates
        return left_out
    found = first.steady_after_steps
    if found is None:
        return f"its end was not found within {updates:,} updates; {left_out}"
    found_s = sum(first.warmup_block_s[: found // (first.warmup_block_steps or 1)])
    return f"over after {found:,} updates, {units.format_seconds(found_s)}; {left_out}"


def _steady(result: Result) -> str:
    against = throughput.find_drift(result, throughput.wanted_half_width(result))
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


def _lost(one: Attribution) -> Table:
    """The parts of what is lost, and why some could not be told apart."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("part")
    for name in ("of an update (95 %)", "of ideal throughput (95 %)"):
        table.add_column(name, justify="right")
    table.add_column("remark")
    for part in one.parts:
        reasons = dict.fromkeys(one.missing[name] for name in part.names if name in one.missing)
        table.add_row(
            *map(
                Text,
                (
                    attribution_cases.name_of(part),
                    attribution_cases.duration(part.step_s),
                    attribution_cases.percent(part.share),
                ),
            )
        )
        for reason in reasons:
            table.add_row("", "", "", Text(reason))
    table.add_section()
    whole_s = units.format_seconds(one.step_s - one.ideal_s)
    against = "against the bare baseline" if one.against == "bare" else "against the strategy itself on one device"
    table.add_row(*map(Text, ("all that is lost", whole_s, attribution_cases.percent(one.lost), against)))
    return table


def _facts(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def words(result: Result) -> str:
    """`simulated gpus=2: the largest batch is 21 per device, 42 global; 22 does not fit within 500 MB (7 tries)`.
    ValueError of a run that searched for none, or in vain."""
    search = result.quality.max_batch
    if search is None or search.batch_per_device is None:
        raise ValueError(f"{result.run_id} found no largest batch")
    found, gpus = search.batch_per_device, result.scale.gpus
    tries = f"{len(search.tried)} {'try' if len(search.tried) == 1 else 'tries'}"
    within = "" if search.limit_bytes is None else f" within {format_bytes(search.limit_bytes)} a process"
    if search.bounded_by == "data":
        samples = f"{found * gpus} of the {result.workload.train_samples} training samples"
        why = f"it fits{within}, and the data set has no larger one ({samples}; {tries}): raise dataset.size"
    else:
        least = min(tried.batch_per_device for tried in search.tried if tried.status != "ok")
        why = f"{least} does not fit{within or ' into memory'} ({tries})"
    return f"{result.scale.strategy} gpus={gpus}: the largest batch is {found} per device, {found * gpus} global; {why}"


WHERE = "where"  # in which table of the study; for the page, which has room


def references(frame: pd.DataFrame, names: Sequence[str]) -> list[Table]:
    """A table for each study, without networks that `frame` has not, unless it has none of the study's. InputError for
    a name that is none."""
    models = {str(model) for model in frame["model"].dropna()}
    rows = plain_rows(published.load_published(names))
    found = []
    for name in dict.fromkeys(names):
        own = [row for row in rows if row["study"] == name]
        others = [row for row in own if row["model"] is not None and row["model"] not in models]
        if not any(row["model"] in models for row in own):
            others = []
        left = f" Left out are {len(others)} rows of other networks." if others else ""
        found.append(_table(published.load_study(name), [row for row in own if row not in others], left))
    return found


def _table(study: published.Study, rows: Sequence[dict[str, Any]], left: str) -> Table:
    told = alone(study, rows)
    shown = [number for number, head in enumerate(told.columns) if head != WHERE]
    made = Table(
        title=Text(told.title), caption=Text(told.caption + left), title_justify="left", caption_justify="left",
        box=box.SIMPLE_HEAD, collapse_padding=True,
    )  # fmt: skip
    for number in shown:
        head = told.columns[number]
        made.add_column(head, justify="right" if head in told.numeric else "left")
    for row in told.rows:
        # Text, not str: rich would take brackets for markup.
        made.add_row(*(Text(row.cells[number].text) for number in shown))
    return made


def terminal_table(table: DocumentTable) -> RichTable:
    """With its title; its caption, for which a page has room, is left out."""
    made = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for name in table.columns:
        made.add_column(Text(name), justify="right" if name in table.numeric else "left")
    for row in table.rows:
        made.add_row(*(Text(cell.text) for cell in row.cells))
    return made


def data_or_model(pooled: pd.DataFrame) -> Iterator[RichTable | str]:
    """Tables, then lines, of the models and batches that were tried both ways; nothing where none was."""
    made = choice_tables.found(pooled, lambda row: read_result(Path(str(row["path"])) / RESULT_FILE))
    if not made:
        return
    yield terminal_table(choice_tables.exchanged(made))
    yield terminal_table(choice_tables.winners(made, limits=False))
    yield from choice_tables.unpredicted(made)
    yield from (said for said, _ in choice_tables.answers(made))
    if said := choice_tables.verdict(made):
        yield said
