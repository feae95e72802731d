"""The section `operations` of a report. Layer 3."""

from __future__ import annotations

from scalebench.report.blocks import Section
from scalebench.report.evidence import Evidence


def section(evidence: Evidence) -> Section | None:
    return None
