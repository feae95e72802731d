"""The sections of a report, in the order in which readers ask. Each module has section(report_data) -> Section | None.

Modules with more than one section name them `<section>_section`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from scalebench.report.document import HomeFolder, Section
from scalebench.report.report_data import ReportData

SECTIONS = (
    "problems:unfinished_section answer:section answer:evidence_section scaling:section scaling:strategies_section "
    "attribution:section sync:section usage:section memory:section training:epochs_section training:section "
    "batch_size:section devices_or_batch:section data_or_model:section training:losses_section usage:clocks_section "
    "pipeline_stages:section operations:section published:section machines:section problems:section"
).split()


def make_sections(report_data: ReportData) -> Iterator[Section]:
    """Yield the sections that have something to show."""
    home = HomeFolder()
    for name in SECTIONS:
        module, function = name.split(":")
        section = getattr(importlib.import_module(f"scalebench.report.sections.{module}"), function)(report_data)
        if section is not None:
            yield section if report_data.full_paths else home.hide_in(section)
