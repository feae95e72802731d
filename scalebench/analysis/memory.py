"""Compare how much of a model's state a device keeps under each strategy, and which runs were out of memory.

A device that keeps a full model should have, in float32, 4 bytes of weights and 4 of gradients for each parameter, and
the optimizer's state, 8 with Adam (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", section 3.1); the figures here are those that strategies report (`Strategy.state_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import MEMORY_COLUMNS, column_key, group_by
from scalebench.analysis.ranking import is_control
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import format_batch, plain_rows
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.stats.estimates import Estimate

if TYPE_CHECKING:
    import pandas as pd

MEMORY_FIGURES = ("state_bytes", "peak_memory_bytes", "max_batch_per_device")  # a model needs one of them to be listed
MODEL_SIZE_COLUMNS = ("model_params", "framework")
MIN_FULL_SHARE = 0.99  # of a full model's state; less than this means that the state is sharded

Row = Mapping[str, Any]  # cells of the pooled frame, None for null


@dataclass(frozen=True)
class ShardingCost:
    """The cost of keeping less of the model: the fastest strategy that does over the fastest that keeps all of it."""

    sharded: Row
    full: Row
    ratio: Estimate  # of their samples/s, with limits over repeats


@dataclass(frozen=True)
class ModelMemory:
    """Rows of one model, data set, hardware and optimizer, including those that were out of memory."""

    rows: list[Row]

    @cached_property
    def _references(self) -> dict[tuple[Any, ...], Row]:
        """By size of the model and framework: the bare baseline of any row, else the row on one device that keeps most.
        Rows on several devices are not references, since each device may keep a part only."""
        baselines = {row["baseline_bare_id"] for row in self.rows}
        candidates = [row for row in self.rows if row["gpus"] == 1 or row["run_id"] in baselines]
        candidates = [row for row in candidates if row["state_bytes"] is not None]
        in_order = sorted(candidates, key=lambda row: (row["run_id"] in baselines, row["state_bytes"]))
        return {column_key(row, MODEL_SIZE_COLUMNS): row for row in in_order}  # the last one of each key

    def reference(self, row: Row) -> Row | None:
        """Return the row to compare the state of a row with; None if one of them has no state."""
        reference = (
            self._references.get(column_key(row, MODEL_SIZE_COLUMNS)) if row["state_bytes"] is not None else None
        )
        return reference if reference is not None and reference["state_bytes"] > 0 else None

    def share(self, row: Row) -> float | None:
        """Return the state of a row's fullest device over that of its reference."""
        reference = self.reference(row)
        return None if reference is None else float(row["state_bytes"] / reference["state_bytes"])

    def keeps_less(self, row: Row) -> bool:
        """Return whether no device of a row keeps the full state."""
        share = self.share(row)
        return share is not None and share < MIN_FULL_SHARE

    @property
    def out_of_memory(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == "oom"]

    def competing_rows(self) -> list[list[Row]]:
        """Return lists of rows with equal devices, batch and precision, in their order."""
        rows = [row for row in self.rows if row["max_batch_per_device"] is None]
        by_key = group_by(rows, lambda row: (row["gpus"], row["scaling"], format_batch(row), row["precision"]))
        return list(by_key.values())

    def sharding_cost(self, competing: Iterable[Row], estimate_ratio: EstimateRatio) -> ShardingCost | None:
        """Compare the fastest rows that keep less and that keep all; None unless there are both. Controls, whose
        replicas train no common model, are not an alternative to either."""
        training = [row for row in competing if row["status"] == "ok" and not is_control(row["strategy"])]
        measured = [row for row in training if row[RATE] and self.share(row) is not None]
        sharding = [row for row in measured if self.keeps_less(row)]
        replicating = [row for row in measured if not self.keeps_less(row)]
        if not sharding or not replicating:
            return None
        sharded, full = (max(rows, key=lambda row: float(row[RATE])) for rows in (sharding, replicating))
        return ShardingCost(sharded, full, decide_ratio(sharded, full, estimate_ratio))


def group_by_model(pooled: pd.DataFrame) -> list[ModelMemory]:
    """Group the rows that are ok or were out of memory, in the order of the frame, if one has a memory figure."""
    if not pooled[list(MEMORY_FIGURES)].notna().any(axis=None):
        return []  # avoids looking at each of 10,000 rows
    rows: list[Row] = [row for row in plain_rows(pooled) if row["status"] in ("ok", "oom")]
    models = map(ModelMemory, group_by(rows, lambda row: column_key(row, MEMORY_COLUMNS)).values())
    return [model for model in models if any(row["status"] == "ok" and {*column_key(row, MEMORY_FIGURES)} != {None}
                                             for row in model.rows)]  # fmt: skip


def bytes_per_parameter(row: Row) -> float | None:
    state, parameters = row["state_bytes"], row["model_params"]
    return state / parameters if state is not None and parameters else None


def format_strategy(row: Row) -> str:
    """Return the strategy with its changed options: `ddp_gloo bucket_cap_mb=1.0`."""
    return f"{row['strategy']} {row['options']}" if row["options"] else str(row["strategy"])
