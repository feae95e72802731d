"""The sections of a report, in the order in which people ask. Each module has section(evidence) -> Section | None."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from scalebench.report.blocks import Section
from scalebench.report.evidence import Evidence

NAMES = (
    "unfinished answer scaling strategies attribution sync usage memory epochs training batch_size batch_or_devices "
    "data_or_model learning clocks stages operations published machines problems"
).split()


def sections(evidence: Evidence) -> Iterator[Section]:
    """Those that have something to tell."""
    for name in NAMES:
        found = importlib.import_module(f"scalebench.report.sections.{name}").section(evidence)
        if found is not None:
            yield found
