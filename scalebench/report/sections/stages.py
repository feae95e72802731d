"""The section `stages` of a report: how models were cut over devices, and how even that is. Layer 3."""

from __future__ import annotations

from scalebench.report import runs, stage_table
from scalebench.report.blocks import Block, Cell, Row, Section, Table, Words
from scalebench.report.drawing import tags
from scalebench.report.evidence import Evidence
from scalebench.results import Result

MOST_RUNS = 24
COLUMNS = ("run", "replica", "stage", "operations", *stage_table.FIGURES)
CAPTION = (
    "What a stage sends and how long it works are of one update; its work was measured by itself, forward and backward "
    "of all micro-batches. The last stage sends nothing on."
)


def section(evidence: Evidence) -> Section | None:
    """None where every device had all of its model."""
    staged = set(evidence.frame.loc[evidence.frame["stages"].notna(), "run_id"])
    rows = [row for row in runs.detailed(evidence) if row["status"] == "ok" and row["run_id"] in staged]
    if not rows:
        return None
    names, made, words = runs.names(rows), [], []
    for row in rows[:MOST_RUNS]:
        name, result = names[row["run_id"]], evidence.result(row["run_id"])
        made += _rows(result, name, tags(row))
        words.append(Words(f"{name}: {stage_table.sentence(result)}.", tags=tags(row)))
    numeric = frozenset(("replica", "stage", *stage_table.FIGURES))
    blocks: list[Block] = [Table("stages", "Stages", COLUMNS, made, numeric, CAPTION), *words]
    if len(rows) > MOST_RUNS:
        blocks.append(Words(f"Told are {MOST_RUNS} of the {len(rows)} runs whose model was cut into stages."))
    if said := runs.left_out(evidence):
        blocks.append(Words(said))
    return Section("stages", "How models were cut into stages", blocks, folded=True)


def _rows(result: Result, name: str, tagged: dict[str, str]) -> list[Row]:
    made = []
    for one, share in stage_table.of(result):
        parameters, sent, work, of_work = stage_table.figures(one, share)
        cells = [
            Cell(name, name), Cell(str(one.replica), one.replica), Cell(str(one.index), one.index),
            Cell(stage_table.operations(one), one.first), Cell(parameters, one.parameter_bytes),
            Cell(sent, one.sent_bytes), Cell(work, one.work_s), Cell(of_work, share),
        ]  # fmt: skip
        made.append(Row(cells, tagged))
    return made
