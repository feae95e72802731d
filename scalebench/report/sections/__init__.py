"""The sections of a report, in the order in which people ask. Each module has section(evidence) -> Section | None."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from scalebench.report.document import Section
from scalebench.report.report_data import Evidence

ORDER = (
    "problems:unfinished_section answer:section scaling:section strategies:section attribution:section sync:section "
    "usage:section memory:section training:epochs_section training:section batch_size:section "
    "devices_or_batch:section data_or_model:section training:learning_section usage:clocks_section "
    "pipeline_stages:section operations:section published:section machines:section problems:section"
).split()


def sections(evidence: Evidence) -> Iterator[Section]:
    """Those that have something to tell."""
    for entry in ORDER:
        module, _, function = entry.partition(":")
        section = getattr(importlib.import_module(f"scalebench.report.sections.{module}"), function)(evidence)
        if section is not None:
            yield section
