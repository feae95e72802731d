"""A run with what its causes are looked for in, and what a cause is made of. Layer 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.attribution.figures import Figure
from scalebench.analysis.attribution.ladder import Ladder, Part
from scalebench.core.result import Result

WORTH = 0.02  # points of efficiency; smaller parts need no cause


@dataclass(frozen=True)
class Cause:
    """Plain sentences: what usually makes a part large, what to try, and the figures that say so here."""

    part: str  # of ladders.PARTS
    cause: str
    remedy: str
    evidence: str

    def sentence(self) -> str:
        """`transfer: all gradients travel in one message (...). Try ...`"""
        return f"{self.part}: {self.cause} ({self.evidence}). {self.remedy}."


@dataclass(frozen=True)
class Case:
    """A ladder, one of its launches, and its baselines as ladders.ladder has them; None where there is none."""

    ladder: Ladder
    result: Result
    bare_full: Result | None = None
    bare_local: Result | None = None
    own: Result | None = None
    rows: Sequence[Mapping[str, Any]] = ()  # of the frame or the pooled frame, this run's too; None for null

    def worth(self, name: str) -> Part | None:
        """The part that holds `name`, where it is large and not within its noise; of drift also a large gain."""
        part = self.ladder.part(name)
        if part is None:
            return None
        sure = part.share.above_zero or (name == "drift" and Figure(-part.share.value, *_turned(part.share)).above_zero)
        return part if abs(part.share.value) >= WORTH and sure else None

    @property
    def flags(self) -> list[str]:
        """Also those that were found on load, where there is a row."""
        row = self.row()
        return list(dict.fromkeys([*self.result.flags, *((row or {}).get("flags") or "").split()]))

    def row(self) -> Mapping[str, Any] | None:
        return next((row for row in self.rows if row["run_id"] == self.ladder.run_id), None)

    def like(self, *columns: str) -> list[Mapping[str, Any]]:
        """Other good rows that agree with this run's in these columns; none where it has no row."""
        mine = self.row()
        if mine is None:
            return []
        others = [row for row in self.rows if row["run_id"] != mine["run_id"] and row["status"] == "ok"]
        return [row for row in others if all(row.get(name) == mine.get(name) for name in columns)]


def _turned(one: Figure) -> tuple[float | None, float | None]:
    return (None, None) if one.low is None or one.high is None else (-one.high, -one.low)


def seconds(value_s: float) -> str:
    """`1.35 ms`"""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value_s) >= 0.9995 * size:
            return f"{value_s / size:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns"


def percent(share: float) -> str:
    """`12 %`"""
    return f"{100 * share:z.0f} %"


def size(count: float) -> str:
    """`12.3 MB`, with decimal prefixes."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.3g} B"
