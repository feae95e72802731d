"""A strategy whose operations take known times on a clock that only they move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scalebench.strategies.base import NotMeasured, Probes
from tests.builders.runs import simulated_spec


class Fake(Probes):
    """One rank; `told` are rank 0's numbers, in the order of the broadcasts, for a rank that is another one."""

    def __init__(self, seconds: Callable[..., float], gpus: int = 2, told: list[float] | None = None) -> None:
        """`seconds(name, size_bytes)` of an operation, or of a transfer `(kind, source, target, size_bytes)`."""
        self.spec = simulated_spec(gpus)
        self.now_s, self.seconds = 0.0, seconds
        self.asked: list[tuple[Any, ...]] = []
        self.said: list[float] = []
        self._told: Iterator[float] | None = None if told is None else iter(told)

    def clock(self) -> float:
        return self.now_s

    def broadcast(self, value: float) -> float:
        value = value if self._told is None else next(self._told)
        self.said.append(value)
        return value

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def collective(self, *what: Any) -> Callable[[], None]:
        self.asked.append(what)
        taken_s = self.seconds(*what)
        if taken_s < 0:
            raise NotMeasured(f"no {what[0]} here")

        def action() -> None:
            self.now_s += taken_s

        return action

    transfer = collective
