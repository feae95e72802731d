"""Data beside model parallelism: the same model and global batch on the same devices, predicted and measured. Layer 1.

A prediction is made of one device without any strategy (operations a second, the optimizer's seconds), of the exchange
of gradients alone (the link) and of the network (bytes of gradients, activations at the cuts): of no step time that it
predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalebench.analysis.identity import SIZE_COLUMNS, parallelism_key
from scalebench.analysis.prediction.calibration import RATE_COLUMN, SyncsByLink, ReadRecord, Row, group_syncs_by_link, find_link_rate, find_micro_batches, fit_device_pace, combine_rates, find_stages, collect_step_work
from scalebench.analysis.prediction.cost_model import LinkRate, MachineRates, StepCost, StepWork, predict_data_parallel, predict_model_parallel, crossover_batch
from scalebench.analysis.scaling_curves import estimate_of
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.stats.estimates import divide_estimates

DATA, MODEL, PIPELINE = KINDS = ("data", "model", "pipeline")
STAGED_STRATEGIES = {
    "model_parallel": MODEL,
    "model_parallel_tensorflow": MODEL,
    "pipeline_gpipe": PIPELINE,
    "pipeline_1f1b": PIPELINE,
}
ALL_REDUCE_PREFIXES = ("ddp", "lightning_", "horovod_", "mirrored", "multiworker_")  # beginnings of strategies' names


@dataclass(frozen=True)
class ParallelismResult:
    """One kind of parallelism: the row of its fastest strategy, else of one that did not run, and what is predicted."""

    row: Row
    update: StepCost | None
    micro_batches: int = 1
    reason: str | None = None  # why nothing is predicted

    @property
    def measured(self) -> bool:
        return self.row["status"] == "ok" and bool(self.row[RATE_COLUMN])


@dataclass(frozen=True)
class Calibration:
    """What predictions are made of."""

    work: StepWork
    rates: MachineRates
    link: LinkRate | None  # None: the hardware's own figure


@dataclass(frozen=True)
class ParallelismComparison:
    """One model and global batch; `ways` by kind, in the order of KINDS. A kind that is not among them has no row."""

    ways: Mapping[str, ParallelismResult]
    known: Calibration | None

    @property
    def row(self) -> Row:
        """For what all have in common."""
        return self.ways[DATA].row

    @property
    def global_batch(self) -> int:
        return int(self.row["global_batch"])

    def predicted_s(self, kind: str) -> float | None:
        way = self.ways.get(kind)
        return None if way is None or way.update is None else way.update.step_s(self.global_batch)

    def measured_s(self, kind: str) -> float | None:
        """By throughput: an update that an epoch's end cuts short counts by its samples."""
        way = self.ways.get(kind)
        return self.global_batch / way.row[RATE_COLUMN] if way is not None and way.measured else None

    @property
    def predicted(self) -> str | None:
        """The kind with the least predicted step; None unless two and more are predicted."""
        return _fastest_kind({kind: self.predicted_s(kind) for kind in self.ways})

    @property
    def measured(self) -> str | None:
        return _fastest_kind({kind: self.measured_s(kind) for kind in self.ways})

    @property
    def tied(self) -> list[str]:
        """Measured kinds that are as fast as the fastest within their 95 % intervals."""
        rates = {kind: estimate_of(way.row, RATE_COLUMN, "throughput") for kind, way in self.ways.items() if way.measured}
        first = rates.pop(self.measured, None) if self.measured is not None else None
        if first is None:
            return []
        return [kind for kind, rate in rates.items() if rate is not None and divide_estimates(first, rate).low <= 1]

    @property
    def right(self) -> bool | None:
        """Whether of the kinds that were measured the one with the least prediction won, or is tied with what did; None
        where that cannot be told of two."""
        told = _fastest_kind({kind: self.predicted_s(kind) for kind, way in self.ways.items() if way.measured})
        return None if told is None else told in (self.measured, *self.tied)

    def data_wins_from(self, kind: str) -> float | None:
        """The global batch from which on data parallelism is predicted to be faster than this kind; None: from none
        on, or nothing is predicted."""
        data, other = (self.ways[name].update if name in self.ways else None for name in (DATA, kind))
        return None if data is None or other is None else crossover_batch(data, other)


def compare_parallelism(rows: Iterable[Row], read: ReadRecord) -> list[ParallelismComparison]:
    """Of rows of the pooled frame in plain Python (curves.cells), in their order; none without both kinds of rows."""
    rows = list(rows)
    if not {_parallelism_kind(row) for row in rows} - {None} > {DATA}:
        return []
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if _parallelism_kind(row) is not None and row["gpus"] > 1 and (key := _key(row, SIZE_COLUMNS, read)) is not None:
            groups.setdefault(key, []).append(row)
    by_id = {str(row["run_id"]): row for row in rows}
    links = group_syncs_by_link((row for row in rows if _parallelism_kind(row) == DATA), read)
    both = [members for members in groups.values() if {_parallelism_kind(row) for row in members} > {DATA}]
    return [_compare_group(members, by_id, links, read) for members in both]


def _parallelism_kind(row: Row) -> str | None:
    name = str(row["strategy"])
    return STAGED_STRATEGIES.get(name) or (DATA if name.startswith(ALL_REDUCE_PREFIXES) else None)


def _key(row: Row, sizes: Sequence[str], read: ReadRecord) -> str | None:
    """What rows share that do the same; None where the record has gone since."""
    try:
        return parallelism_key(row, read(row).spec, sizes)
    except InputError:
        return None


def _compare_group(members: Sequence[Row], by_id: Mapping[str, Row], links: SyncsByLink, read: ReadRecord) -> ParallelismComparison:
    of_kind = {kind: [row for row in members if _parallelism_kind(row) == kind] for kind in KINDS}
    chosen = {kind: max(found, key=lambda row: row[RATE_COLUMN] or 0.0) for kind, found in of_kind.items() if found}
    try:
        known = _calibrate(chosen[DATA], _find_bare_rows(members, by_id, read), links, read)
    except InputError as error:
        return ParallelismComparison({kind: ParallelismResult(row, None, reason=str(error)) for kind, row in chosen.items()}, None)
    return ParallelismComparison({kind: _predict(kind, row, read(row), known) for kind, row in chosen.items()}, known)


def _find_bare_rows(members: Sequence[Row], by_id: Mapping[str, Row], read: ReadRecord) -> list[Row]:
    """The bare baseline of these, then the same with other batches."""
    found = next((by_id[name] for row in members if (name := str(row["baseline_bare_id"])) in by_id), None)
    if found is None:
        return []
    alike = (row for row in by_id.values() if row["strategy"] == found["strategy"] and row["gpus"] == 1 and row[RATE_COLUMN])
    key, batch = _key(found, (), read), found["global_batch"]
    return [found, *(row for row in alike if row["global_batch"] != batch and _key(row, (), read) == key)]


def _calibrate(data: Row, bares: Sequence[Row], links: SyncsByLink, read: ReadRecord) -> Calibration:
    """InputError says what is not."""
    pace, link = fit_device_pace(bares), find_link_rate(data, links, read)
    work = collect_step_work(data, bares[0], pace, read)
    return Calibration(work, combine_rates(work, pace, link), link if isinstance(link, LinkRate) else None)


def _predict(kind: str, row: Row, result: Result, known: Calibration) -> ParallelismResult:
    if kind == DATA:
        return ParallelismResult(row, predict_data_parallel(known.work, row["gpus"], known.rates))
    try:
        stages, micro_batches = find_stages(result), find_micro_batches(result)
    except InputError as error:
        return ParallelismResult(row, None, reason=str(error))
    return ParallelismResult(row, predict_model_parallel(known.work, stages, known.rates, micro_batches), micro_batches)


def _fastest_kind(seconds: Mapping[str, float | None]) -> str | None:
    known = {kind: value for kind, value in seconds.items() if value is not None}
    return min(known, key=lambda kind: known[kind]) if len(known) > 1 else None
