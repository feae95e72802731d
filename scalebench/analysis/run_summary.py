"""What is kept of a record once its own figures are known: no raw series, so that ten thousand of them fit into memory.
Layer 1."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scalebench.core.result import Result, Scale
from scalebench.core.stats.estimates import Interval

Placement = tuple[tuple[tuple[str, str], ...], str, int]  # variables, binding and first device


@dataclass(frozen=True, slots=True)
class Figures:
    """A run as the rows of others need it. The first six are the record's own."""

    run_id: str
    started_at: str
    status: str
    reason: str | None
    fingerprint: str
    scale: Scale
    started: datetime
    keys: tuple[str, str]  # baselines.comparison_key, without and with the strategy
    placement: Placement
    as_it_comes: bool  # all options of the strategy have their defaults
    throughput: tuple[float | None, Interval | None]
    sample: str  # what one sample is, and of which model: throughputs of others are not compared by a given baseline
    cells: dict[str, Any]  # of its row in the frame, but for what compares it with other rows
    on_request: bool  # collective operations or bandwidths were measured


Run = Result | Figures
