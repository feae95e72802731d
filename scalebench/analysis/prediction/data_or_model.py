"""Data and model parallelism with the same model and global batch on the same devices, predicted and measured.

A prediction is that of the strategy's step model, drawn through the bare run on one device. The link is that of
isolated gradient synchronization, else of the hardware's YAML: no step time that is predicted has a part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import SIZE_COLUMNS, parallelism_key
from scalebench.analysis.prediction.curve_models import find_links, make_step_model
from scalebench.analysis.prediction.extrapolation import Extrapolation, MeasuredStep, extrapolate
from scalebench.analysis.prediction.link_rates import ReadRecord, Row, SyncsByLink, group_syncs_by_link, ring_bytes
from scalebench.analysis.prediction.model_stages import find_stages
from scalebench.analysis.prediction.step_model import ALL_REDUCE, Links, StepModel
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.errors import InputError

DATA, MODEL, PIPELINE = KINDS = ("data", "model", "pipeline")
OTHER = "other"
KIND_OF_SYNC = {"all_reduce": DATA, "stages": MODEL, "pipeline": PIPELINE}
NO_PROBES_REASON = (
    "measured without the parts of its step: measure.probes=true, and a measure.probe_s above its seconds"
)
BATCHES = np.unique(np.geomspace(1, 2**24, 4000).round())  # among which the one is sought from which a kind is faster


@dataclass(frozen=True)
class ParallelismResult:
    """One kind of parallelism: the row of its fastest strategy, else of a failed one, and what is predicted of it."""

    row: Row
    prediction: Extrapolation | None = None
    sent_bytes: float | None = None  # of a device in a step, the mean over devices
    reason: str | None = None  # for a missing prediction

    @property
    def predicted_s(self) -> float | None:
        """The seconds of a step."""
        if self.prediction is None:
            return None
        return float(self.prediction.step_s(self.row["gpus"], self.row["global_batch"] / self.row["gpus"]))

    @property
    def measured_s(self) -> float | None:
        """The seconds by throughput: a step shortened by the end of an epoch counts by its samples."""
        row = self.row
        return row["global_batch"] / row[RATE] if row["status"] == "ok" and row[RATE] else None

    @property
    def flops_per_byte(self) -> float | None:
        """Operations of all devices over bytes that all devices send; None if nothing is sent, or unknown.

        The studies' "computation per parameter" of data parallelism, which grows with the batch, and "computation per
        neuron output" of model parallelism, which does not (thesis: P. Orlob, "Parallelization of GPUs based on
        Horovod", interim presentation of 2022, "Data vs. Model Parallelism").
        """
        flops, row = self.row["flops_per_sample"], self.row
        return row["global_batch"] * flops / row["gpus"] / self.sent_bytes if flops and self.sent_bytes else None


@dataclass(frozen=True)
class ParallelismComparison:
    """One model and global batch; `results` by kind, in the order of KINDS. A missing kind has no row."""

    results: Mapping[str, ParallelismResult]
    estimate_ratio: EstimateRatio

    @property
    def row(self) -> Row:
        """The row of data parallelism, for columns that are equal in all."""
        return self.results[DATA].row

    @property
    def predicted(self) -> str | None:
        """The kind with the shortest predicted step; None unless at least two are predicted."""
        return _find_fastest({kind: result.predicted_s for kind, result in self.results.items()})

    @property
    def measured(self) -> str | None:
        return _find_fastest({kind: result.measured_s for kind, result in self.results.items()})

    @property
    def tied(self) -> list[str]:
        """Measured kinds that are as fast as the fastest within their 95 % limits over repeats."""
        if self.measured is None:
            return []
        first = self.results[self.measured].row
        ratios = {
            kind: decide_ratio(first, result.row, self.estimate_ratio)
            for kind, result in self.results.items()
            if result.measured_s is not None and kind != self.measured
        }
        return [kind for kind, ratio in ratios.items() if ratio.has_limits and ratio.low <= 1]

    @property
    def right(self) -> bool | None:
        """True if the measured kind with the shortest prediction won or is tied; None for fewer than two."""
        measured = {kind: result for kind, result in self.results.items() if result.measured_s is not None}
        predicted = _find_fastest({kind: result.predicted_s for kind, result in measured.items()})
        return None if predicted is None else predicted in (self.measured, *self.tied)

    def data_wins_from(self, kind: str) -> float | None:
        """Return the global batch from which on data parallelism should be faster, to half a per cent, 1 for every
        batch; None: at no batch, or unknown."""
        data, other = (self.results[name].prediction if name in self.results else None for name in (DATA, kind))
        if data is None or other is None:
            return None
        devices = self.row["gpus"]
        slower = data.step_s(devices, BATCHES / devices) >= other.step_s(devices, BATCHES / devices)
        first = 0 if not slower.any() else int(np.flatnonzero(slower)[-1]) + 1
        return float(BATCHES[first]) if first < len(BATCHES) else None


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
        if (
            kind is not None
            and kind != OTHER
            and row["gpus"] > 1
            and (key := _make_key(row, SIZE_COLUMNS, read)) is not None
        ):
            fastest = groups.setdefault(key, {}).setdefault(kind, row)
            groups[key][kind] = max(fastest, row, key=lambda each: each[RATE] or 0.0)
    syncs = group_syncs_by_link((row for row in rows if kinds.get(row["strategy"]) == DATA), read)
    both = [chosen for chosen in groups.values() if set(chosen) > {DATA}]
    return [ParallelismComparison(_predict_kinds(chosen, rows, syncs, read), estimate_ratio) for chosen in both]


def _make_key(row: Row, sizes: Sequence[str], read: ReadRecord) -> str | None:
    """Return the parallelism_key of a row; None if its record was deleted."""
    try:
        return parallelism_key(row, read(row).spec, sizes)
    except InputError:
        return None


def _predict_kinds(
    chosen: Mapping[str, Row], rows: Sequence[Row], syncs: SyncsByLink, read: ReadRecord
) -> dict[str, ParallelismResult]:
    """Return the results of a model and global batch by kind; all use the link of data parallelism."""
    results = {}
    for kind in (kind for kind in KINDS if kind in chosen):
        row = chosen[kind]
        try:
            bares = _find_bare_rows(chosen.values(), rows, read)
            links = find_links(read(row).spec.get("hardware") or {}, [chosen[DATA]], syncs)
            results[kind] = _predict_kind(row, bares, links, read)
        except InputError as error:
            results[kind] = ParallelismResult(row, reason=str(error))
    return results


def _find_bare_rows(chosen: Iterable[Row], rows: Sequence[Row], read: ReadRecord) -> list[Row]:
    """Return the bare baseline of these rows, then the same with other batches; InputError if it says too little."""
    names = {str(row["baseline_bare_id"]) for row in chosen}
    bare = next((row for row in rows if str(row["run_id"]) in names), None)
    if bare is None:
        raise InputError("no bare run on one device was measured: baseline=bare adds it")
    if bare["optimizer_s"] is None:
        raise InputError(f"the bare run was {NO_PROBES_REASON}")
    others = (row for row in rows if row["strategy"] == bare["strategy"] and row["gpus"] == 1 and row[RATE])
    key, batch = _make_key(bare, (), read), bare["global_batch"]
    return [bare, *(row for row in others if row["global_batch"] != batch and _make_key(row, (), read) == key)]


def _predict_kind(row: Row, bares: Sequence[Row], links: Links, read: ReadRecord) -> ParallelismResult:
    """Predict a row from bare ones; InputError says what is unknown."""
    unmeasured = {**row, "step_s": None}  # what its probes say about its own step has no part in the prediction
    model, bare, devices = make_step_model([bares[0], unmeasured], links, read, bares), bares[0], row["gpus"]
    rate = float(links.rate(links.count_nodes(np.array([float(devices)])))[0])
    if np.isinf(rate):
        raise InputError(f"no link is known: the data-parallel run did not go well, or was {NO_PROBES_REASON}")
    if model.sync == ALL_REDUCE and not model.sync_bytes:
        raise InputError("how many parameters there are is not known of this model")
    step_s = bare["global_batch"] / bare[RATE]
    if step_s <= model.optimizer_s:
        raise InputError("the optimizer takes all of the bare run's step")
    drawn = extrapolate(model, [MeasuredStep(1, bare["global_batch"], step_s)])
    return ParallelismResult(row, drawn, _count_sent_bytes(model, row, read))


def _count_sent_bytes(model: StepModel, row: Row, read: ReadRecord) -> float:
    """Return the bytes of gradients in a ring, or of activations and their gradients at the cuts."""
    if model.sync == ALL_REDUCE:
        return ring_bytes(model.sync_bytes, row["gpus"])
    return 2 * sum(stage.sent_bytes for stage in find_stages(read(row))) * float(row["global_batch"] / row["gpus"])


def _find_fastest(seconds: Mapping[str, float | None]) -> str | None:
    measured = {kind: value for kind, value in seconds.items() if value is not None}
    return min(measured, key=lambda kind: measured[kind]) if len(measured) > 1 else None
