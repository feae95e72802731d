"""What every rank of a group has to do alike. Layer 1."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from scalebench.strategies.base import NotMeasured

T = TypeVar("T")
Sum = Callable[[list[float]], list[float]]


def made_by_all(make: Callable[[], T], add_up: Sum, failures: tuple[type[Exception], ...], reason: str) -> T:
    """What `make` gives, where no rank fails in it with one of `failures`; else NotMeasured(reason) on all of them.

    Ranks of which one goes another way would wait for each other until their time is over. `add_up` gives sums over
    the ranks; every rank calls this.
    """
    made: list[T] = []
    with contextlib.suppress(*failures):  # told below, when all know of it
        made.append(make())
    failed = add_up([float(not made)])[0]
    if failed:
        raise NotMeasured(reason)
    return made[0]


def refused(error: Exception, who: str, what: str) -> NotMeasured:
    """For an operation that a library declares it lacks, on every rank alike; any other error is raised as it is."""
    if "support" not in str(error).lower() and not isinstance(error, NotImplementedError):
        raise error
    words = str(error).partition("\n")[0].strip() or type(error).__name__
    return NotMeasured(f"{who} has no {what}: {words}")
