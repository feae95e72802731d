"""An attributed run with everything that its causes are derived from, and the description of a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalebench.analysis.attribution.lost_efficiency import Attribution, Part
from scalebench.analysis.attribution.reference_runs import ReferenceRuns
from scalebench.analysis.repeats import Configurations
from scalebench.core.result import Result

MIN_SHARE = 0.02  # points of efficiency; smaller parts need no cause


@dataclass(frozen=True)
class Cause:
    """The usual reason for a large part, a remedy, and the figures that support it in this run."""

    part: str  # of components.LOSS_PARTS
    cause: str
    remedy: str
    evidence: str

    def sentence(self) -> str:
        """Return `transfer: all gradients travel in one message (...). Try ...`."""
        return f"{self.part}: {self.cause} ({self.evidence}). {self.remedy}."


@dataclass(frozen=True)
class AttributedRun:
    """An attribution, one of its repeats, and the runs that it is measured against."""

    attribution: Attribution
    result: Result
    references: ReferenceRuns
    rows: Sequence[Mapping[str, Any]] = ()  # of the frame or the pooled frame, this run's too; None for null
    configurations: Configurations = field(default_factory=Configurations)  # ratios between pooled rows

    def significant(self, name: str) -> Part | None:
        """Return the part that includes `name` if it is large and surely above zero; for drift also a large gain.

        A part without limits is none: one repeat does not say that another process would lose the same.
        """
        part = self.attribution.part(name)
        if part is None or abs(part.share.value) < MIN_SHARE:
            return None
        return part if part.share.low > 0 or (name == "drift" and part.share.high < 0) else None

    @property
    def flags(self) -> list[str]:
        """The flags of the record and those that were added when it was loaded."""
        row = self.row()
        return list(dict.fromkeys([*self.result.flags, *((row or {}).get("flags") or "").split()]))

    def row(self) -> Mapping[str, Any] | None:
        """Return this run's row of the frame, if there is one."""
        return next((row for row in self.rows if row["run_id"] == self.attribution.run_id), None)

    def similar_rows(self, *columns: str) -> list[Mapping[str, Any]]:
        """Return other good rows that agree with this run's in these columns; none if it has no row."""
        run = self.row()
        if run is None:
            return []
        others = [row for row in self.rows if row["run_id"] != run["run_id"] and row["status"] == "ok"]
        return [row for row in others if all(row.get(name) == run.get(name) for name in columns)]


def format_whole_percent(share: float) -> str:
    """Return `12 %`."""
    return f"{100 * share:z.0f} %"
