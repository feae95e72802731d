"""The sections of a report, in the order in which readers ask, and the functions that make their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.report import document as doc
from scalebench.report.report_data import HomeFolder, ReportData
from scalebench.report.sections import (
    answer,
    attribution,
    batches,
    collectives,
    machines,
    memory,
    operations,
    prediction,
    problems,
    published,
    scaling,
    stages,
    steps,
    training,
    usage,
)

Part = Callable[[ReportData], Iterable[doc.Block]]  # nothing if it has nothing to show
# By id: the title, and the parts by their headings, which they have if there are several.
SECTIONS: dict[str, tuple[str, Mapping[str, Part]]] = {
    "unfinished": ("Incomplete sweeps", {"Incomplete sweeps": problems.list_unfinished_sweeps}),
    "answer": ("Answer", {"Answer": answer.list_verdicts}),
    "evidence": ("How sure, and how to repeat it", {"How sure, and how to repeat it": answer.list_evidence}),
    "scaling": ("Scaling", {"Scaling": scaling.scaling_groups, "What more devices would give": prediction.list_blocks}),
    "strategies": ("All configurations", {"All configurations": scaling.list_configurations}),
    "attribution": (attribution.TITLE, {attribution.TITLE: attribution.loss_groups}),
    "step": ("Where the time of a step goes", {
        "Parts of a step, and its operations": operations.list_blocks,
        "What real input costs": steps.list_real_input,
        "Gradient synchronization": steps.sync_groups,
    }),
    "usage": ("Devices: use, memory, clocks", {
        "Use of devices, processors and network": usage.usage_groups,
        "Memory of a device": memory.list_blocks,
        "Clocks, power and processors over time": usage.draw_clocks,
    }),
    "training": ("Epochs and training", {
        "Epochs: time, devices and energy": training.epoch_groups,
        "Training: accuracy and time to target": training.list_trainings,
        "Loss during training": training.list_losses,
    }),
    "batch-size": ("Batch size", {"Batch size": batches.batch_groups,
                                  "More devices or a larger batch": batches.compare_devices_and_batches}),
    "stages": ("How models were cut into stages", {"How models were cut into stages": stages.list_stages}),
    "published": ("Published figures", {"Published figures": published.list_blocks}),
    "machines": ("Machines", {"Machines": machines.list_blocks,
                              "Collective operations and bandwidths": collectives.list_blocks}),
    "problems": ("Problems and warnings", {"Problems and warnings": problems.list_problems}),
}  # fmt: skip


def make_charts(report_data: ReportData, name: str) -> list[doc.Chart]:
    """Return the charts of one section. Raise InputError for an unknown one."""
    if name not in SECTIONS:
        raise InputError(unknown_name_message("section", name, SECTIONS))
    blocks = [block for section in make_sections(report_data, [name]) for block in section.blocks]
    return [block for block in blocks if isinstance(block, doc.Chart)]


def make_sections(report_data: ReportData, names: Iterable[str] = ()) -> Iterator[doc.Section]:
    """Yield the sections (those of these names, if there are any) that have something to show, without empty tables and
    charts that show no more than their table, and with figures of charts in units of their size."""
    for name in names or SECTIONS:
        title, parts = SECTIONS[name]
        all_contents = {heading: select_content(make(report_data)) for heading, make in parts.items()}
        contents = {heading: content for heading, content in all_contents.items() if content}
        blocks: list[doc.Block] = []
        for heading, content in contents.items():
            if len(contents) > 1:  # a note that several parts have, as about runs that were left out, is shown once
                content = [block for block in content if not isinstance(block, doc.Paragraph) or block not in blocks]
                if blocks or heading != title:  # the section has its title as a heading already
                    blocks.append(doc.Paragraph(heading, "heading"))
            blocks += content
        if contents:
            labels = {block.text for block in blocks if isinstance(block, doc.Paragraph) and block.kind == "label"}
            is_open = name == "answer" or (name == "scaling" and len(labels) > 1)
            section = doc.Section(name, title if len(contents) > 1 else next(iter(contents)), blocks, not is_open)
            yield section if report_data.full_paths else HomeFolder().hide_in(section)


def select_content(blocks: Iterable[doc.Block]) -> list[doc.Block]:
    """Return the blocks that show something; nothing without one. A caption that several tables have is shown once."""
    content: list[doc.Block] = []
    captions: set[str] = set()
    for block in filter(doc.has_content, blocks):
        if isinstance(block, doc.Chart):
            block = doc.scale_units(block)
        elif isinstance(block, doc.Table):
            block, caption = replace(block, caption="") if block.caption in captions else block, block.caption
            captions.add(caption)
        content.append(block)
    is_empty = all(isinstance(block, doc.Paragraph) and block.kind in ("heading", "label") for block in content)
    return [] if is_empty else content
