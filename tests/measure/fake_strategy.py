"""A strategy whose operations take known times on a clock that only they advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scalebench.strategies.base import NotMeasured, Probes
from tests.builders.runs import simulated_spec


class FakeStrategy(Probes):
    """One rank; `rank_0_values` are the values that rank 0 broadcasts, in order, for a rank other than 0."""

    def __init__(self, seconds: Callable[..., float], gpus: int = 2, rank_0_values: list[float] | None = None) -> None:
        """`seconds(name, size_bytes)` of an operation, or of a transfer `(kind, source, target, size_bytes)`."""
        self.spec = simulated_spec(gpus)
        self.now_s, self.seconds = 0.0, seconds
        self.requests: list[tuple[Any, ...]] = []
        self.broadcasts: list[float] = []
        self._rank_0_values: Iterator[float] | None = None if rank_0_values is None else iter(rank_0_values)

    def clock(self) -> float:
        return self.now_s

    def broadcast(self, value: float) -> float:
        value = value if self._rank_0_values is None else next(self._rank_0_values)
        self.broadcasts.append(value)
        return value

    def synchronize(self) -> None:
        """Return at once, since operations finish immediately."""

    def collective(self, *request: Any) -> Callable[[], None]:
        self.requests.append(request)
        taken_s = self.seconds(*request)
        if taken_s < 0:
            raise NotMeasured(f"no {request[0]} here")

        def action() -> None:
            self.now_s += taken_s

        return action

    transfer = collective
