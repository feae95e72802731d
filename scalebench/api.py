"""What plugins may lean on: marked with `@api(since=N)`, listed in docs/plugin-api.md. Layer 0.

A plugin says which version it was written for by an entry point `scalebench.api` whose name is that number. The
version goes up when something that is marked changes its meaning or goes away; what is added keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

VERSION = 1
# Constants cannot be marked where they are: name -> the version since which it may be used.
CONSTANTS = {
    "scalebench.strategy.PARTS": 1,
    "scalebench.strategy.FORWARD": 1,
    "scalebench.strategy.BACKWARD": 1,
    "scalebench.strategy.OPTIMIZER": 1,
    "scalebench.workloads.datasets.images.PIXEL_SCALE": 1,
    "scalebench.adapters.torch.evidence.UPDATES": 1,
}
Marked = TypeVar("Marked", bound=Callable[..., Any])


def api(since: int) -> Callable[[Marked], Marked]:
    """Marks a class or a function as part of what plugins may use, since that version."""

    def mark(thing: Marked) -> Marked:
        thing.__scalebench_api__ = since  # type: ignore[attr-defined]
        return thing

    return mark
