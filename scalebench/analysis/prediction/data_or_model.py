"""Data and model parallelism with the same model and global batch on the same devices, predicted and measured.

A prediction uses one device without any strategy (operations per second, seconds of the optimizer), isolated gradient
synchronization (the link) and the network (bytes of gradients, activations at the cuts): no step time that it predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalebench.analysis.identity import SIZE_COLUMNS, parallelism_key
from scalebench.analysis.prediction.calibration import (
    RATE_COLUMN,
    ReadRecord,
    Row,
    SyncsByLink,
    collect_step_work,
    combine_rates,
    find_link_rate,
    find_micro_batches,
    find_stages,
    fit_device_pace,
    group_syncs_by_link,
)
from scalebench.analysis.prediction.cost_model import (
    LinkRate,
    MachineRates,
    StepCost,
    StepWork,
    crossover_batch,
    predict_data_parallel,
    predict_model_parallel,
)
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.errors import InputError
from scalebench.core.result import Result

DATA, MODEL, PIPELINE = KINDS = ("data", "model", "pipeline")
STAGED_STRATEGIES = {
    "model_parallel": MODEL,
    "model_parallel_tensorflow": MODEL,
    "pipeline_gpipe": PIPELINE,
    "pipeline_1f1b": PIPELINE,
}
ALL_REDUCE_PREFIXES = ("ddp", "lightning_", "horovod_", "mirrored", "multiworker_")  # of strategy names


@dataclass(frozen=True)
class ParallelismResult:
    """One kind of parallelism: the row of its fastest strategy, else of a failed one, and the predicted cost."""

    row: Row
    cost: StepCost | None
    micro_batches: int = 1
    reason: str | None = None  # for a missing prediction

    @property
    def measured(self) -> bool:
        return self.row["status"] == "ok" and bool(self.row[RATE_COLUMN])


@dataclass(frozen=True)
class Calibration:
    """The measured work and rates that predictions are based on."""

    work: StepWork
    rates: MachineRates
    link: LinkRate | None  # None: the hardware's own figure


@dataclass(frozen=True)
class ParallelismComparison:
    """One model and global batch; `results` by kind, in the order of KINDS. A missing kind has no row."""

    results: Mapping[str, ParallelismResult]
    calibration: Calibration | None
    estimate_ratio: EstimateRatio

    @property
    def row(self) -> Row:
        """The row of data parallelism, for columns that are equal in all."""
        return self.results[DATA].row

    @property
    def global_batch(self) -> int:
        return int(self.row["global_batch"])

    def predicted_s(self, kind: str) -> float | None:
        result = self.results.get(kind)
        return None if result is None or result.cost is None else result.cost.step_s(self.global_batch)

    def measured_s(self, kind: str) -> float | None:
        """Return the seconds by throughput: a step shortened by the end of an epoch counts by its samples."""
        result = self.results.get(kind)
        return self.global_batch / result.row[RATE_COLUMN] if result is not None and result.measured else None

    @property
    def predicted(self) -> str | None:
        """The kind with the shortest predicted step; None unless at least two are predicted."""
        return _fastest_kind({kind: self.predicted_s(kind) for kind in self.results})

    @property
    def measured(self) -> str | None:
        return _fastest_kind({kind: self.measured_s(kind) for kind in self.results})

    @property
    def tied(self) -> list[str]:
        """Measured kinds that are as fast as the fastest within their 95 % limits over repeats."""
        if self.measured is None:
            return []
        first = self.results[self.measured].row
        ratios = {
            kind: decide_ratio(first, result.row, self.estimate_ratio)
            for kind, result in self.results.items()
            if result.measured and kind != self.measured
        }
        return [kind for kind, ratio in ratios.items() if ratio.has_limits and ratio.low <= 1]

    @property
    def right(self) -> bool | None:
        """True if the measured kind with the shortest prediction won or is tied; None for fewer than two."""
        predicted = _fastest_kind(
            {kind: self.predicted_s(kind) for kind, result in self.results.items() if result.measured}
        )
        return None if predicted is None else predicted in (self.measured, *self.tied)

    def data_wins_from(self, kind: str) -> float | None:
        """Return the global batch from which data parallelism should be faster; None: at no batch, or unknown."""
        data, other = (self.results[name].cost if name in self.results else None for name in (DATA, kind))
        return None if data is None or other is None else crossover_batch(data, other)


def compare_parallelism(
    rows: Iterable[Row], read: ReadRecord, estimate_ratio: EstimateRatio
) -> list[ParallelismComparison]:
    """Compare rows of the pooled frame (scaling_curves.plain_rows), in their order; needs rows of both kinds."""
    rows = list(rows)
    if not {_parallelism_kind(row) for row in rows} - {None} > {DATA}:
        return []
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if (
            _parallelism_kind(row) is not None
            and row["gpus"] > 1
            and (key := _key(row, SIZE_COLUMNS, read)) is not None
        ):
            groups.setdefault(key, []).append(row)
    by_id = {str(row["run_id"]): row for row in rows}
    links = group_syncs_by_link((row for row in rows if _parallelism_kind(row) == DATA), read)
    both = [members for members in groups.values() if {_parallelism_kind(row) for row in members} > {DATA}]
    compared = (_predict_group(members, by_id, links, read) for members in both)
    return [ParallelismComparison(results, calibration, estimate_ratio) for results, calibration in compared]


def _parallelism_kind(row: Row) -> str | None:
    name = str(row["strategy"])
    return STAGED_STRATEGIES.get(name) or (DATA if name.startswith(ALL_REDUCE_PREFIXES) else None)


def _key(row: Row, sizes: Sequence[str], read: ReadRecord) -> str | None:
    """Return the parallelism_key of a row; None if its record was deleted."""
    try:
        return parallelism_key(row, read(row).spec, sizes)
    except InputError:
        return None


def _predict_group(
    members: Sequence[Row], by_id: Mapping[str, Row], links: SyncsByLink, read: ReadRecord
) -> tuple[dict[str, ParallelismResult], Calibration | None]:
    """Return the results of a model and global batch by kind, and what their predictions are based on."""
    of_kind = {kind: [row for row in members if _parallelism_kind(row) == kind] for kind in KINDS}
    chosen = {kind: max(rows, key=lambda row: row[RATE_COLUMN] or 0.0) for kind, rows in of_kind.items() if rows}
    try:
        calibration = _calibrate(chosen[DATA], _find_bare_rows(members, by_id, read), links, read)
    except InputError as error:
        return {kind: ParallelismResult(row, None, reason=str(error)) for kind, row in chosen.items()}, None
    return {kind: _predict(kind, row, read(row), calibration) for kind, row in chosen.items()}, calibration


def _find_bare_rows(members: Sequence[Row], by_id: Mapping[str, Row], read: ReadRecord) -> list[Row]:
    """Return the bare baseline of these rows, then the same with other batches."""
    baseline = next((by_id[name] for row in members if (name := str(row["baseline_bare_id"])) in by_id), None)
    if baseline is None:
        return []
    others = (
        row
        for row in by_id.values()
        if row["strategy"] == baseline["strategy"] and row["gpus"] == 1 and row[RATE_COLUMN]
    )
    key, batch = _key(baseline, (), read), baseline["global_batch"]
    return [baseline, *(row for row in others if row["global_batch"] != batch and _key(row, (), read) == key)]


def _calibrate(data: Row, bares: Sequence[Row], links: SyncsByLink, read: ReadRecord) -> Calibration:
    """Calibrate the cost model; InputError says what was not measured."""
    pace, link = fit_device_pace(bares), find_link_rate(data, links, read)
    work = collect_step_work(data, bares[0], pace, read)
    return Calibration(work, combine_rates(work, pace, link), link if isinstance(link, LinkRate) else None)


def _predict(kind: str, row: Row, result: Result, calibration: Calibration) -> ParallelismResult:
    if kind == DATA:
        return ParallelismResult(row, predict_data_parallel(calibration.work, row["gpus"], calibration.rates))
    try:
        stages, micro_batches = find_stages(result), find_micro_batches(result)
    except InputError as error:
        return ParallelismResult(row, None, reason=str(error))
    return ParallelismResult(
        row, predict_model_parallel(calibration.work, stages, calibration.rates, micro_batches), micro_batches
    )


def _fastest_kind(seconds: Mapping[str, float | None]) -> str | None:
    measured = {kind: value for kind, value in seconds.items() if value is not None}
    return min(measured, key=lambda kind: measured[kind]) if len(measured) > 1 else None
