"""The section `data_or_model` of a report: what data and model parallelism exchange, which should win and which did.
Layer 3."""

from __future__ import annotations

from scalebench.report import choice_tables
from scalebench.report.blocks import Block, Section, Words
from scalebench.report.drawing import MOST_ROWS, sentences
from scalebench.report.evidence import Evidence


def section(evidence: Evidence) -> Section | None:
    """None where no model and batch was tried both ways."""
    made = choice_tables.found(evidence.pooled, lambda row: evidence.result(str(row["run_id"])))
    if not made:
        return None
    blocks: list[Block] = []
    for said, one in choice_tables.answers(made):
        blocks.append(Words(f"{said}.", "answer", choice_tables.labels(one)))
    if said := choice_tables.verdict(made):
        blocks.append(Words(sentences(said)))
    blocks += [choice_tables.winners(made[:MOST_ROWS]), choice_tables.exchanged(made[:MOST_ROWS])]
    if len(made) > MOST_ROWS:
        blocks.append(Words(f"{MOST_ROWS} of {len(made)} are shown."))
    blocks += [Words(f"{reason}.") for reason in choice_tables.unpredicted(made)]
    return Section(choice_tables.ID, "Data or model parallelism", blocks)
