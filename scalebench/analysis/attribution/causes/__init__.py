"""What usually causes a part of the lost efficiency, told only where figures of the run support it. Layer 1.

Each cause has its condition, its figures and its remedy in docs/attribution.md.
"""

from __future__ import annotations

from scalebench.analysis.attribution.causes import communication, per_device, stragglers
from scalebench.analysis.attribution.causes.cause import Case as Case
from scalebench.analysis.attribution.causes.cause import Cause as Cause

CHECKS = (*per_device.CHECKS, *stragglers.CHECKS, *communication.CHECKS)


def sentences(case: Case) -> list[Cause]:
    """The causes that the figures of `case` support, in the order of the parts. None is proven by them."""
    return [found for check in CHECKS if (found := check(case)) is not None]
