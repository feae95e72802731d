"""The sections of a report, in the order in which readers ask. Each module has section(report_data) -> Section | None.

Modules with more than one section name them `<section>_section`. SECTIONS joins those that answer one question.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.report import document as doc
from scalebench.report.report_data import HomeFolder, ReportData


@dataclass(frozen=True)
class JoinedSection:
    """A section of the report, from parts that each have a heading if there are several."""

    id: str
    title: str  # of several parts; one alone has its own title
    parts: tuple[str, ...]  # module:function


SECTIONS = (
    JoinedSection("unfinished", "Incomplete sweeps", ("problems:unfinished_section",)),
    JoinedSection("answer", "Answer", ("answer:section",)),
    JoinedSection("evidence", "How sure, and how to repeat it", ("answer:evidence_section",)),
    JoinedSection("scaling", "Scaling", ("scaling:section", "prediction:section")),
    JoinedSection("strategies", "All configurations", ("scaling:pairs_section", "scaling:strategies_section")),
    JoinedSection("attribution", "Where the lost efficiency went", ("attribution:section",)),
    JoinedSection("step", "Where the time of a step goes",
                  ("operations:section", "steps:real_input_section", "steps:sync_section")),
    JoinedSection("usage", "Devices: use, memory, clocks", ("usage:section", "memory:section", "usage:clocks_section")),
    JoinedSection("training", "Epochs and training",
                  ("training:epochs_section", "training:section", "training:losses_section")),
    JoinedSection("batch-size", "Batch size", ("batches:batch_size_section", "batches:devices_or_batch_section")),
    JoinedSection("parallelism", "Data or model parallelism", ("parallelism:section", "parallelism:stages_section")),
    JoinedSection("published", "Published figures", ("published:section",)),
    JoinedSection("machines", "Machines", ("machines:section", "collectives:section")),
    JoinedSection("problems", "Problems and warnings", ("problems:section",)),
)  # fmt: skip


def make_charts(report_data: ReportData, name: str) -> list[doc.Chart]:
    """Return the charts of one section. Raise InputError for an unknown one."""
    names = [joined.id for joined in SECTIONS]
    if name not in names:
        raise InputError(unknown_name_message("section", name, names))
    sections = make_sections(report_data, [SECTIONS[names.index(name)]])
    return [block for section in sections for block in section.blocks if isinstance(block, doc.Chart)]


def make_sections(
    report_data: ReportData, joined_sections: Sequence[JoinedSection] = SECTIONS
) -> Iterator[doc.Section]:
    """Yield the sections that have something to show, without charts that show no more than their table, and with the
    figures of the others in units of their size."""
    for joined in joined_sections:
        parts = [part for name in joined.parts if (part := _make_part(name, report_data)) is not None]
        if parts:
            section = _join(joined, parts)
            yield section if report_data.full_paths else HomeFolder().hide_in(section)


def _make_part(name: str, report_data: ReportData) -> doc.Section | None:
    module, function = name.split(":")
    section: doc.Section | None = getattr(importlib.import_module(f"{__name__}.{module}"), function)(report_data)
    if section is None:
        return None
    blocks = [
        doc.scale_units(block) if isinstance(block, doc.Chart) else block
        for block in section.blocks
        if not isinstance(block, doc.Chart) or doc.has_shape(block)
    ]
    if all(isinstance(block, doc.Paragraph) and block.kind in ("heading", "label") for block in blocks):
        return None
    return replace(section, blocks=blocks)


def _join(joined: JoinedSection, parts: Sequence[doc.Section]) -> doc.Section:
    if len(parts) == 1:
        return replace(parts[0], id=joined.id)
    blocks: list[doc.Block] = []
    for part in parts:
        # A note that several parts have, as about runs that were left out, is shown once.
        new = [block for block in part.blocks if not isinstance(block, doc.Paragraph) or block not in blocks]
        blocks += [doc.Paragraph(part.title, "heading"), *new]
    return doc.Section(joined.id, joined.title, blocks, parts[0].folded)
