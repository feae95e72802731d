"""Usual causes of each part of the lost efficiency, reported only if figures of the run support them.

Each cause has its condition, its figures and its remedy in docs/explain/attribution.md.
"""

from __future__ import annotations

from scalebench.analysis.attribution.causes import communication, imbalance, per_device
from scalebench.analysis.attribution.causes.cause import AttributedRun as AttributedRun
from scalebench.analysis.attribution.causes.cause import Cause as Cause

CAUSE_CHECKS = (
    *per_device.PER_DEVICE_CHECKS,
    *imbalance.IMBALANCE_CHECKS,
    *communication.COMMUNICATION_CHECKS,
)


def find_causes(run: AttributedRun) -> list[Cause]:
    """Return the causes that the figures of `run` support, in the order of the parts. None is proven by them."""
    return [cause for check in CAUSE_CHECKS if (cause := check(run)) is not None]
