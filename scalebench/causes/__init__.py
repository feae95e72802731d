"""What usually causes a part of the lost efficiency, told only where figures of the run support it. Layer 1.

Each cause has its condition, its figures and its remedy in docs/attribution.md.
"""

from __future__ import annotations

from scalebench.causes import alone, exchange, waiting
from scalebench.causes.case import Case as Case
from scalebench.causes.case import Cause as Cause

CHECKS = (*alone.CHECKS, *waiting.CHECKS, *exchange.CHECKS)


def sentences(case: Case) -> list[Cause]:
    """The causes that the figures of `case` support, in the order of the parts. None is proven by them."""
    return [found for check in CHECKS if (found := check(case)) is not None]
