"""How much of a model's state a device keeps under each strategy, and which runs were out of memory. Layer 1.

A device that keeps a whole model has, in float32, 4 bytes of weights and 4 of gradients for each parameter, and the
optimizer's state, 8 with Adam: 16 bytes (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", section 3.1, count as many for mixed precision, where Adam keeps weights in float32 too). That is
what to expect; the figures here are those that strategies told (`Strategy.state_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scalebench.analysis.scaling_curves import batch_of, interval, plain_rows
from scalebench.core.stats.estimates import Interval, ratio_interval

if TYPE_CHECKING:
    import pandas as pd

TELLING = ("state_bytes", "peak_memory_bytes", "max_batch_per_device")  # one of them makes a model worth telling
SAME = ("model", "dataset", "hardware", "optimizer")
RATE = "throughput_samples_per_s"
WHOLE = 0.99  # of the state of a whole model; what is less lacks more than odd ends

Row = Mapping[str, Any]  # cells of the pooled frame, None for null


@dataclass(frozen=True)
class Price:
    """What keeping less of the model costs: the fastest that does over the fastest that keeps all of it."""

    less: Row
    whole: Row
    ratio: float  # of their samples/s
    interval: Interval | None


@dataclass(frozen=True)
class Footprints:
    """Rows of one model, data set, hardware and optimizer, those that were out of memory with them."""

    rows: list[Row]

    @cached_property
    def _references(self) -> dict[tuple[Any, ...], Row]:
        """By size of the model and framework: the bare baseline of any row, else the row on one device that keeps
        most. What several devices keep, each of them may keep a part of."""
        baselines = {row["baseline_bare_id"] for row in self.rows}
        whole = [row for row in self.rows if row["gpus"] == 1 or row["run_id"] in baselines]
        found: dict[tuple[Any, ...], Row] = {}
        for row in sorted(whole, key=lambda row: (row["run_id"] in baselines, row["state_bytes"] or 0)):
            if row["state_bytes"] is not None:
                found[_size(row)] = row
        return found

    def reference(self, row: Row) -> Row | None:
        """What a row's state is measured by; None where it has none, or no other row is there to compare it with."""
        found = self._references.get(_size(row)) if row["state_bytes"] is not None else None
        return found if found is not None and found["state_bytes"] > 0 else None

    def share(self, row: Row) -> float | None:
        """State of the fullest device of a row over that of its reference."""
        found = self.reference(row)
        return None if found is None else float(row["state_bytes"] / found["state_bytes"])

    def keeps_less(self, row: Row) -> bool:
        share = self.share(row)
        return share is not None and share < WHOLE

    @property
    def out(self) -> list[Row]:
        """Rows that were out of memory."""
        return [row for row in self.rows if row["status"] == "oom"]

    def equals(self) -> list[list[Row]]:
        """Rows that compete: of as many devices, the same batch and precision, in the order in which they come."""
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            if row["max_batch_per_device"] is None:
                found.setdefault((row["gpus"], row["scaling"], batch_of(row), row["precision"]), []).append(row)
        return list(found.values())

    def price(self, competing: Iterable[Row]) -> Price | None:
        """None where not both kinds are among them."""
        known = [row for row in competing if row["status"] == "ok" and row[RATE] and self.share(row) is not None]
        less = [row for row in known if self.keeps_less(row)]
        whole = [row for row in known if not self.keeps_less(row)]
        if not less or not whole:
            return None
        fast, full = (max(rows, key=lambda row: float(row[RATE])) for rows in (less, whole))
        mine, base = (interval(row, RATE, "throughput") for row in (fast, full))
        limits = None if mine is None or base is None else ratio_interval(mine, base)
        return Price(fast, full, fast[RATE] / full[RATE], limits)


def footprints(pooled: pd.DataFrame) -> list[Footprints]:
    """Rows that are ok or were out of memory, in the order of the frame; of models of which something is known."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in plain_rows(pooled):
        if row["status"] in ("ok", "oom"):
            found.setdefault(tuple(row[name] for name in SAME), []).append(row)
    return [Footprints(rows) for rows in found.values() if any(map(_told, rows))]


def _told(row: Row) -> bool:
    return row["status"] == "ok" and any(row[name] is not None for name in TELLING)


def bytes_per_parameter(row: Row) -> float | None:
    state, parameters = row["state_bytes"], row["model_params"]
    return state / parameters if state is not None and parameters else None


def name_of(row: Row) -> str:
    """`ddp_gloo`, with what was chosen of its options: `ddp_gloo bucket_cap_mb=1.0`."""
    return f"{row['strategy']} {row['options']}" if row["options"] else str(row["strategy"])


def _size(row: Row) -> tuple[Any, ...]:
    return row["model_params"], row["framework"]
