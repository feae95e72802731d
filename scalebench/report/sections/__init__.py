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
    JoinedSection("strategies", "All configurations", ("side_by_side:section", "scaling:strategies_section")),
    JoinedSection("attribution", "Where the lost efficiency went", ("attribution:section",)),
    JoinedSection(
        "step", "Where the time of a step goes", ("operations:section", "real_input:section", "sync:section")
    ),
    JoinedSection("usage", "Devices: use, memory, clocks", ("usage:section", "memory:section", "usage:clocks_section")),
    JoinedSection(
        "training", "Epochs and training", ("training:epochs_section", "training:section", "training:losses_section")
    ),
    JoinedSection("batch-size", "Batch size", ("batches:batch_size_section", "batches:devices_or_batch_section")),
    JoinedSection("parallelism", "Data or model parallelism", ("data_or_model:section", "pipeline_stages:section")),
    JoinedSection("published", "Published figures", ("published:section",)),
    JoinedSection("machines", "Machines", ("machines:section", "collectives:section")),
    JoinedSection("problems", "Problems and warnings", ("problems:section",)),
)


def make_charts(report_data: ReportData, name: str) -> list[doc.Chart]:
    """Return the charts of one section. Raise InputError for an unknown one."""
    names = [joined.id for joined in SECTIONS]
    if name not in names:
        raise InputError(unknown_name_message("section", name, names))
    sections = make_sections(report_data, [SECTIONS[names.index(name)]])
    return [block for section in sections for block in section.blocks if isinstance(block, doc.Chart)]


def make_sections(report_data: ReportData, chosen: Sequence[JoinedSection] = SECTIONS) -> Iterator[doc.Section]:
    """Yield the sections that have something to show, without charts that show no more than their table, and with the
    figures of the others in units of their size."""
    yield from (section for joined in chosen if (section := _make_section(joined, report_data)) is not None)


def _make_section(joined: JoinedSection, report_data: ReportData) -> doc.Section | None:
    section = _join(joined, [part for name in joined.parts if (part := _make_part(name, report_data)) is not None])
    return section if section is None or report_data.full_paths else HomeFolder().hide_in(section)


def _make_part(name: str, report_data: ReportData) -> doc.Section | None:
    module, function = name.split(":")
    section: doc.Section | None = getattr(importlib.import_module(f"{__name__}.{module}"), function)(report_data)
    if section is None:
        return None
    blocks = [_scale(block) for block in section.blocks if not isinstance(block, doc.Chart) or doc.has_shape(block)]
    return replace(section, blocks=blocks) if any(_has_content(block) for block in blocks) else None


def _scale(block: doc.Block) -> doc.Block:
    return doc.scale_units(block) if isinstance(block, doc.Chart) else block


def _has_content(block: doc.Block) -> bool:
    return not (isinstance(block, doc.Paragraph) and block.kind in ("heading", "label"))


def _join(joined: JoinedSection, parts: list[doc.Section]) -> doc.Section | None:
    if len(parts) < 2:
        return replace(parts[0], id=joined.id) if parts else None
    blocks: list[doc.Block] = []
    for part in parts:
        # A note that several parts have, as about runs that were left out, is shown once.
        new = [block for block in part.blocks if not isinstance(block, doc.Paragraph) or block not in blocks]
        blocks += [doc.Paragraph(part.title, "heading"), *new]
    return doc.Section(joined.id, joined.title, blocks, parts[0].folded)
