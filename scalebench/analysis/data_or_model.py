"""Data and model parallelism with the same model and global batch on the same devices: what they send, and which is
faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import parallelism_key
from scalebench.analysis.prediction.curve_models import ReadRecord, Row
from scalebench.analysis.prediction.step_model import ring_bytes
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.step_breakdown import group_stages
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.errors import InputError
from scalebench.core.result import Result

DATA, MODEL, PIPELINE = KINDS = ("data", "model", "pipeline")
OTHER = "other"
KIND_OF_SYNC = {"all_reduce": DATA, "stages": MODEL, "pipeline": PIPELINE}


@dataclass(frozen=True)
class ParallelismResult:
    """One kind of parallelism: the row of its fastest strategy, else of a failed one, and the bytes that a device sends
    in a step, the mean over devices; None where they are unknown."""

    row: Row
    sent_bytes: float | None

    @property
    def measured_s(self) -> float | None:
        """The seconds by throughput: a step shortened by the end of an epoch counts by its samples."""
        row = self.row
        return row["global_batch"] / row[RATE] if row["status"] == "ok" and row[RATE] else None

    @property
    def flops_per_byte(self) -> float | None:
        """Operations over bytes that all devices send; None if nothing is sent, or unknown. It grows with the batch in
        data parallelism, not in model parallelism (thesis: P. Orlob, "Parallelization of GPUs based on Horovod")."""
        flops, row = self.row["flops_per_sample"], self.row
        return row["global_batch"] * flops / row["gpus"] / self.sent_bytes if flops and self.sent_bytes else None


@dataclass(frozen=True)
class ParallelismComparison:
    """One model and global batch; `results` by kind, in the order of KINDS. A missing kind has no row."""

    results: Mapping[str, ParallelismResult]
    fastest: str | None  # the kind with the shortest measured step; None unless at least two were measured
    tied: list[str]  # measured kinds that are as fast as the fastest within their 95 % limits over repeats

    @property
    def row(self) -> Row:
        """The row of data parallelism, for columns that are equal in all."""
        return self.results[DATA].row


def list_kinds(rows: Iterable[Row], read: ReadRecord) -> dict[str, str]:
    """Return the kind of each strategy, with copies of the model on all devices or with its layers distributed, or
    OTHER; none of a strategy whose records cannot be read."""
    kinds: dict[str, str] = {}
    for row in rows:
        if row["strategy"] not in kinds:
            with suppress(InputError):
                sync = read(row).spec.get("strategy", {}).get("sync")
                kinds[row["strategy"]] = KIND_OF_SYNC.get(sync, OTHER)
    return kinds


def compare_parallelism(
    rows: Iterable[Row], read: ReadRecord, estimate_ratio: EstimateRatio
) -> list[ParallelismComparison]:
    """Compare rows of the pooled frame (scaling_curves.plain_rows), in their order; needs rows of both kinds."""
    rows = list(rows)
    kinds = list_kinds(rows, read)
    if not set(kinds.values()) - {OTHER} > {DATA}:
        return []
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        kind = kinds.get(row["strategy"], OTHER)
        if kind == OTHER or row["gpus"] == 1:
            continue
        with suppress(InputError):  # its record was deleted
            rivals = groups.setdefault(parallelism_key(row, read(row).spec), {})
            rivals[kind] = max(rivals.get(kind, row), row, key=lambda each: each[RATE] or 0.0)
    comparisons = []
    for rivals in groups.values():
        if not set(rivals) > {DATA}:
            continue
        results = {kind: ParallelismResult(rivals[kind], _count_sent_bytes(kind, rivals[kind], read(rivals[kind])))
                   for kind in KINDS if kind in rivals}  # fmt: skip
        seconds = {kind: each.measured_s for kind, each in results.items() if each.measured_s is not None}
        fastest = min(seconds, key=seconds.__getitem__) if len(seconds) > 1 else None
        ratios = {kind: decide_ratio(rivals[fastest], rivals[kind], estimate_ratio) for kind in seconds
                  if fastest not in (None, kind)}  # fmt: skip
        tied = [kind for kind, ratio in ratios.items() if ratio.has_limits and ratio.low <= 1]
        comparisons.append(ParallelismComparison(results, fastest, tied))
    return comparisons


def _count_sent_bytes(kind: str, row: Row, result: Result) -> float | None:
    """Return the bytes of gradients in a ring, or of activations and their gradients at the cuts, as recorded."""
    if kind == DATA:
        return ring_bytes(row["gradient_bytes"], row["gpus"]) if row["gradient_bytes"] else None
    stages = next(iter(group_stages(result)), [])
    if not stages or [stage.index for stage in stages] != list(range(stages[0].stages)):
        return None
    return 2 * sum(stage.sent_bytes or 0 for stage in stages) / len(stages)
