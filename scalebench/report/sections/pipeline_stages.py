"""The section `stages` of a report: how models were cut over devices, and how even that is. Layer 3.

The stages that a run's model was cut into, and how much of the devices' time none of them works. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis import pipeline_stages as staged
from scalebench.analysis import throughput
from scalebench.core import units
from scalebench.core.result import Result, StageRecord
from scalebench.report import report_data
from scalebench.report.document import Block, Cell, Row, Section, Table, Words, tags
from scalebench.report.report_data import Evidence

FIGURES = ("parameters", "sends an update", "work an update", "of the work")
Of = tuple[StageRecord, float | None]  # a stage, its share of the work of its chain


def stages(result: Result) -> Iterator[RichTable | str]:
    """Nothing of a run whose devices have all of the model."""
    found = of(result)
    if not found:
        return
    yield "stages of the model"
    several = len({one.replica for one, _ in found}) > 1
    table = RichTable(box=box.SIMPLE_HEAD)
    for name in (["replica"] if several else []) + ["stage", "operations"]:
        table.add_column(name)
    for name in FIGURES:
        table.add_column(name, justify="right")
    for one, share in found:
        told = [str(one.index), operations(one), *figures(one, share)]
        table.add_row(*map(Text, [str(one.replica), *told] if several else told))
    yield table
    yield sentence(result)


def of(result: Result) -> list[Of]:
    """Chain by chain, from the input on."""
    found: list[Of] = []
    for chain in staged.group_stages(result):
        work = staged.stage_work_s(chain)
        whole_s = sum(work) if work is not None else 0.0
        found += [(one, one.work_s / whole_s if one.work_s is not None and whole_s else None) for one in chain]
    return found


def operations(one: StageRecord) -> str:
    return one.first if one.first == one.last else f"{one.first} .. {one.last}"


def figures(one: StageRecord, share: float | None) -> tuple[str, str, str, str]:
    """FIGURES in words: nothing where there is none, a dash where it was not measured."""
    sent = units.format_bytes(one.sent_bytes) if one.sent_bytes is not None else "" if one.index == one.stages - 1 else "-"
    work = units.format_seconds(one.work_s) if one.work_s is not None else "-"
    return units.format_bytes(one.parameter_bytes), sent, work, units.format_percent(share) if share is not None else "-"


def sentence(result: Result) -> str:
    """The measured bubble beside what it should be."""
    found, step_s = staged.group_stages(result), throughput.step_s(result)
    stages, micro_batches = staged.count_stages(found)
    measured = staged.mean_over_pipelines(found, lambda work: staged.bubble_share(work, step_s))
    words = ["bubble: not measured"]
    if measured is not None:
        words = [f"bubble: {units.format_percent(measured)} of the devices' time is no stage's forward or backward"]
        words += ["below 0, since by themselves the stages took longer than in training"] if measured < 0 else []
    if stages is not None and micro_batches is not None:
        expected = units.format_percent(staged.expected_bubble_share(stages, micro_batches))
        batches = f"{micro_batches} micro-batch{'' if micro_batches == 1 else 'es'}"
        theory = f"{expected} is expected of {batches} through {stages} equal stage{'' if stages == 1 else 's'}"
        unequal = staged.mean_over_pipelines(found, lambda work: staged.expected_bubble_share_of_unequal_stages(work, micro_batches))
        words.append(
            theory + (f", {units.format_percent(unequal)} of stages as unequal as these" if unequal is not None else "")
        )
    return "; ".join(words)


MOST_RUNS = 24
COLUMNS = ("run", "replica", "stage", "operations", *FIGURES)
CAPTION = (
    "What a stage sends and how long it works are of one update; its work was measured by itself, forward and backward "
    "of all micro-batches. The last stage sends nothing on."
)


def section(evidence: Evidence) -> Section | None:
    """None where every device had all of its model."""
    staged = set(evidence.frame.loc[evidence.frame["stages"].notna(), "run_id"])
    rows = [row for row in report_data.detailed(evidence) if row["status"] == "ok" and row["run_id"] in staged]
    if not rows:
        return None
    names, made, words = report_data.names(rows), [], []
    for row in rows[:MOST_RUNS]:
        name, result = names[row["run_id"]], evidence.result(row["run_id"])
        made += _rows(result, name, tags(row))
        words.append(Words(f"{name}: {sentence(result)}.", tags=tags(row)))
    numeric = frozenset(("replica", "stage", *FIGURES))
    blocks: list[Block] = [Table("stages", "Stages", COLUMNS, made, numeric, CAPTION), *words]
    if len(rows) > MOST_RUNS:
        blocks.append(Words(f"Told are {MOST_RUNS} of the {len(rows)} runs whose model was cut into stages."))
    if said := report_data.left_out(evidence):
        blocks.append(Words(said))
    return Section("stages", "How models were cut into stages", blocks, folded=True)


def _rows(result: Result, name: str, tagged: dict[str, str]) -> list[Row]:
    made = []
    for one, share in of(result):
        parameters, sent, work, of_work = figures(one, share)
        cells = [
            Cell(name, name), Cell(str(one.replica), one.replica), Cell(str(one.index), one.index),
            Cell(operations(one), one.first), Cell(parameters, one.parameter_bytes),
            Cell(sent, one.sent_bytes), Cell(work, one.work_s), Cell(of_work, share),
        ]  # fmt: skip
        made.append(Row(cells, tagged))
    return made
