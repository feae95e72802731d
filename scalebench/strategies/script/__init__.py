"""A training program of the user's as a strategy: its arguments, its process, and the hooks that see its steps."""

from __future__ import annotations

from collections.abc import Callable

listeners: list[Callable[[int], None]] = []  # of this process: the strategy that runs a program here


def step(samples: int = 0) -> None:
    """Mark the end of a training step, in a program whose updates are not steps of an optimizer that scalebench sees.

    `samples` are those of this process; 0 leaves them to its DataLoader. Where scalebench has not started the program,
    this does nothing.
    """
    for listener in listeners:
        listener(samples)
