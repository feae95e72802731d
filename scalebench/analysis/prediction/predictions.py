"""Predictions for measured scaling curves on more devices, with 95 % intervals, and the answers that follow from them.

Nothing is ranked that is known from one device only: strategies that are alike there differ on several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import group_by
from scalebench.analysis.prediction import curve_models, step_model
from scalebench.analysis.prediction.curve_models import Hardware, RatesByLink, ReadRecord, Row
from scalebench.analysis.prediction.step_model import Extrapolation, FloatArray, MeasuredStep, load_limits
from scalebench.analysis.scaling_curves import Curve
from scalebench.core.errors import InputError
from scalebench.core.machine.peak_flops import find_peak_flops
from scalebench.core.result import Result
from scalebench.core.stats.estimates import Estimate

MAX_MEASURED_DEVICES = 4320  # of the published curves
MIN_DOUBLING_GAIN = 1.5
OTHER_DEVICE_SCALE = 0.1  # of the error, where the devices are others than those measured
SMALL_LOSS = 0.05  # of a step; below it, computation is what limits
LIMITS = ("compute", "sync", "growth", "host")


@dataclass(frozen=True)
class Forecast:
    """The forecast for one number of devices; None stands for what is unknown."""

    devices: int
    batch: float | None  # samples of a device; None: a step has fewer samples than there are devices
    throughput: Estimate | None  # samples/s
    efficiency: Estimate | None  # per device, over the fewest devices that were measured
    limited_by: str  # the largest loss, or computation where there is hardly any
    fits: bool  # False: too many devices for one process
    device_hours_per_epoch: float | None


class Rates(NamedTuple):
    """Throughput and efficiency by number of devices, with limits; nan: a step has fewer samples than devices."""

    throughput: FloatArray
    low: FloatArray
    high: FloatArray
    efficiency: FloatArray
    efficiency_low: FloatArray
    efficiency_high: FloatArray


class Reach(NamedTuple):
    """How far scaling goes; None stands for no number of devices."""

    surely: int | None  # devices up to which efficiency keeps a share, with confidence
    by_figures: int | None
    poor_doubling: int | None  # the fewest whose doubling brings less than MIN_DOUBLING_GAIN


@dataclass(frozen=True)
class CurvePrediction:
    """A measured curve and its extrapolation to other numbers of devices, perhaps of other hardware."""

    curve: Curve
    extrapolation: Extrapolation
    hardware: Hardware
    strategy: Mapping[str, Any]  # as the last row's spec has it
    knows_network: bool = False
    other_device: bool = False  # than those measured
    batch: float | None = None  # samples of a device, instead of those measured
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.curve.name

    @property
    def points(self) -> tuple[MeasuredStep, ...]:
        return self.extrapolation.points

    @property
    def max_devices(self) -> float:
        """The devices of a node where one process has them all, else infinity."""
        is_one = self.strategy.get("processes") == "one_for_all"
        return self.extrapolation.model.links.devices_per_node if is_one else math.inf

    @property
    def is_rankable(self) -> bool:
        """True if several numbers of devices are measured."""
        return len(self.points) > 1

    def find_measured(self, devices: int) -> float | None:
        """Return the samples/s measured on so many devices with the predicted batch; None: not measured."""
        points = [] if self.other_device else [each for each in self.points if each.devices == devices]
        rates = (devices * each.batch / each.step_s for each in points if each.batch == self.find_batch(devices))
        return next(rates, None)

    def list_missed(self) -> list[tuple[int, float, Estimate]]:
        """Return the devices, the measured and the predicted samples/s where the interval lacks what was measured."""
        counts = [point.devices for point in self.points]
        rates = [(count, self.find_measured(count), self.predict_rate(count)) for count in counts]
        return [(count, rate, predicted) for count, rate, predicted in rates
                if rate and predicted and not predicted.low <= rate <= predicted.high]  # fmt: skip

    def list_remarks(self, devices: int) -> list[str]:
        """Return what to know of a prediction for this number of devices."""
        remarks = list(self.remarks)
        last_nodes, nodes = map(self.extrapolation.model.links.count_nodes, (self.points[-1].devices, devices))
        if devices > self.max_devices:
            remarks.append(f"one process has all devices, at most the {self.max_devices:,.0f} of a node")
        elif nodes > 1 >= last_nodes:
            where = f"{devices:,} devices on {nodes:,.0f} nodes"
            remarks.append(f"nothing between nodes was measured, so that the interval is wider: {where}")
        return remarks

    def find_batch(self, devices: Any) -> FloatArray:
        """Return the samples of a device by numbers of devices; nan where a device would have none."""
        counts, last = np.asarray(devices, float), self.curve.rows[-1]
        if self.batch is not None or last["scaling"] != "strong":
            return np.full_like(counts, self.points[-1].batch if self.batch is None else self.batch)
        return np.where(counts <= last["global_batch"], last["global_batch"] / counts, math.nan)

    def predict_rates(self, counts: Any) -> Rates:
        devices = np.asarray(counts, float)
        batch = self.find_batch(devices)
        seconds = self.extrapolation.step_s(devices, batch)
        rate = devices * batch / seconds
        per_device, last_rate = (point.batch / self._step_s(point) for point in (self.points[0], self.points[-1]))
        efficiency = rate / devices / per_device
        fast, slow = self._limits(devices, batch)
        highest = max(1.0, last_rate / per_device)  # nothing superlinear is predicted
        most = np.where(devices > self.points[-1].devices, np.maximum(highest, efficiency), math.inf)
        return Rates(rate, rate / slow, rate / fast, efficiency, efficiency / slow, np.minimum(efficiency / fast, most))

    def predict_rate(self, devices: int) -> Estimate | None:
        """Return the samples/s; None where a step has fewer samples than there are devices."""
        rates = self.predict_rates([devices])
        rate, low, high = (float(values[0]) for values in rates[:3])
        return None if math.isnan(rate) else Estimate(rate, low, high)

    def forecast(self, devices: int) -> Forecast:
        batch, last = float(self.find_batch(devices)), self.curve.rows[-1]
        figures = [float(values[0]) for values in self.predict_rates([devices])]
        if math.isnan(figures[0]):
            return Forecast(devices, None, None, None, "samples", False, None)
        throughput, efficiency = Estimate(*figures[:3]), Estimate(*figures[3:])
        model, fits = self.extrapolation.model, devices <= self.max_devices
        parts = step_model.predict_parts(model, devices, batch)
        host_share = parts.host_share(model.computes_on_host)
        losses = [SMALL_LOSS, *map(float, (parts.sync_s / parts.step_s, parts.growth_s / parts.step_s, host_share))]
        limited_by = LIMITS[losses.index(max(losses))] if fits else "one node"
        hours = None if last["epoch_s"] is None else devices * last["epoch_s"] * last[RATE] / throughput.value / 3600
        return Forecast(devices, batch, throughput, efficiency, limited_by, fits, hours)

    def _step_s(self, point: MeasuredStep) -> float:
        """Return the seconds of a measured step, predicted where the devices are others."""
        return float(self.extrapolation.step_s(point.devices, point.batch)) if self.other_device else point.step_s

    def _limits(self, devices: FloatArray, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the 95 % limits of a step over the predicted one: of the prediction, and of the last measured point,
        in quadrature on a logarithmic scale."""
        scale = self.extrapolation.error_scale(devices, batch, self.knows_network)
        scale = scale + (OTHER_DEVICE_SCALE if self.other_device else 0.0)
        low, high = load_limits()[self.extrapolation.measured]
        # Per device, hardly more is possible than at the last measured point; below it, than at the first one.
        first, last = self.points[0], self.points[-1]
        growth = np.log2(np.maximum(devices / last.devices, 1))
        sample_s = np.where(devices < last.devices, *(self._step_s(point) / point.batch for point in (first, last)))
        sample_s = np.where(devices < first.devices, 0.0, sample_s)
        perfect = sample_s * batch / self.extrapolation.step_s(devices, batch)
        most = np.minimum(1, perfect) * np.exp(low * step_model.ERROR_FLOOR * (1 + growth))
        fast = np.where(scale > 0, np.minimum(np.maximum(np.exp(low * scale), most), 1), 1)
        row = self.curve.rows[-1]
        limits = (row["throughput_low"], row["throughput_high"])
        below, above = (0.0 if not limit or math.isinf(limit) else math.log(limit / row[RATE]) for limit in limits)
        return np.exp(-np.hypot(np.log(fast), above)), np.exp(np.hypot(high * scale, below))

    def find_reach(self, share: float, most: int) -> Reach:
        """Return how far scaling goes, looking at each number of devices up to `most`."""
        most = max(self.points[0].devices, int(min(most, self.max_devices)))
        first = self.points[0].devices
        devices = np.arange(first, most + 1)
        rates = self.predict_rates(devices)
        is_sure = rates.efficiency_low >= share - 1e-9
        for row, point in zip(self.curve.rows[1:], self.points[1:], strict=True):
            if point.devices <= most and (rate := self.find_measured(point.devices)) is not None:
                low = (row["throughput_low"] or rate) / point.devices * self.points[0].step_s / self.points[0].batch
                is_sure[point.devices - first] = low >= share - 1e-9

        def last_before_failure(holds: Any) -> int | None:
            count = len(holds) if holds.all() else int(np.argmin(holds))
            return int(devices[count - 1]) if count else None

        doubled = rates.throughput[first::2]  # at twice the devices
        poor = doubled < MIN_DOUBLING_GAIN * rates.throughput[: len(doubled)]
        return Reach(
            last_before_failure(is_sure), last_before_failure(rates.efficiency >= share - 1e-9),
            int(devices[np.argmax(poor)]) if poor.any() else None,
        )  # fmt: skip


@dataclass(frozen=True)
class PredictedGroup:
    """The curves of one workload, and the reasons why others cannot be predicted, by the names of their curves."""

    group: dict[str, str]
    predictions: list[CurvePrediction]
    reasons: dict[str, str]


def predict_curves(
    curves: Sequence[Curve], read: ReadRecord, hardware: Hardware | None = None, batch: float | None = None,
    among: Sequence[Curve] | None = None,
) -> list[PredictedGroup]:  # fmt: skip
    """Predict curves of strategies, not of bare baselines, by workload; with `hardware`, on its nodes and links.

    Links and other batches are those of `among`, by default of the same curves.
    """
    among = curves if among is None else among
    rates = curve_models.group_rates_by_link((row for curve in among for row in curve.rows), read)
    groups: dict[tuple[tuple[str, str], ...], PredictedGroup] = {}
    for curve in curves:
        group = groups.setdefault(tuple(curve.group.items()), PredictedGroup(curve.group, [], {}))
        try:
            group.predictions.append(_predict_curve(curve, among, read, rates, hardware, batch, curve.rows))
        except InputError as error:
            group.reasons[curve.name] = str(error)
    return list(groups.values())


def _predict_curve(
    curve: Curve, curves: Sequence[Curve], read: ReadRecord, rates: RatesByLink, hardware: Hardware | None,
    batch: float | None, measured_rows: Sequence[Row],
) -> CurvePrediction:  # fmt: skip
    first, last = curve.rows[0], curve.rows[-1]
    spec, remarks = read(last).spec, list[str]()
    own: Hardware = spec.get("hardware") or {}
    links = curve_models.find_links(own, measured_rows, rates)
    # A step that the end of an epoch shortens counts by its samples.
    points = [MeasuredStep(row["gpus"], row["global_batch"] / row["gpus"], row["global_batch"] / row[RATE])
              for row in curve.rows]  # fmt: skip

    def key(each: Curve) -> Any:
        return each.name, each.tags, {**each.group, "batch": None, "scaling": None}

    # Rows of this strategy and workload on one device, one for each batch.
    same = (row for each in curves if first["gpus"] == 1 and key(each) == key(curve) for row in each.rows)
    by_batch = group_by((row for row in same if row["gpus"] == 1), lambda row: row["global_batch"])
    batches = [rows[0] for rows in by_batch.values()]
    model = curve_models.make_step_model(curve.rows, links, read, batches)
    target = links if hardware is None else curve_models.find_links(hardware, curve.rows)
    if target.bytes_per_s is None and target.network_bytes_per_s is None and (hardware is not None or len(points) < 2):
        name, way_out = own.get("name"), ", and none was measured: measure gpus=2, or --hardware NAME"
        if hardware is not None:
            name, way_out = hardware.get("name"), ": set links.inter_node_bytes_per_s in its YAML"
        raise InputError(f"hardware {name} has no links{way_out}")
    extrapolation = step_model.extrapolate(model, points)
    if batch is not None and len(batches) < 2 and batch != points[-1].batch:
        remarks.append(
            "other batches were not measured: a step is taken to grow with its samples; sweep=batches shows it"
        )
    if last["scaling"] == "strong" and len(batches) < 2:
        remarks.append("what a smaller batch costs was not measured: sweep=batches shows it")
    if hardware is not None:
        speed, model = _compare_devices(last, hardware, read(last)), extrapolation.model
        own_s = {name: getattr(model, name) / (speed or 1) for name in ("sample_s", "pass_s", "optimizer_s")}
        # The host's limit is unknown where cores are not known, or where only one of both computes on its cores.
        cores, other_cores = own.get("cpus_per_node") or 0, hardware.get("cpus_per_node")
        is_like = (own.get("devices") == "cpu") == (hardware.get("devices") == "cpu")
        own_s["host_sample_s"] = model.host_sample_s * cores / other_cores if other_cores and is_like else 0.0
        shared = bool(hardware.get("nodes_share_cores"))
        model = replace(model, links=target, nodes_share_cores=shared, **own_s)
        extrapolation = replace(extrapolation, model=model, slope=None)
        devices = f"{speed:.3g} times as fast, by their peak FLOP/s," if speed else "as fast"
        devices = f"devices {devices} as those measured"
        if own.get("devices") == "cpu" != hardware.get("devices"):
            devices = "but computation at the pace of the CPU workers measured: on its GPUs synchronization weighs more"
        remarks.append(f"nodes, links and memory of {hardware.get('name')}; {devices}")
    knows_network = hardware is None and any(row["nodes"] > 1 for row in curve.rows)
    return CurvePrediction(curve, extrapolation, hardware or own, spec.get("strategy") or {}, knows_network,
                           hardware is not None, batch, tuple(remarks))  # fmt: skip


def _compare_devices(row: Row, hardware: Hardware, result: Result) -> float | None:
    """Return the peak FLOP/s of the hardware's GPUs over those of the measured ones; None where one is unknown."""
    precision, model = row["precision_used"] or row["precision"], str(hardware.get("gpu_model"))
    gpus = result.machine.gpus if result.scale.device == "cuda" else []
    own_peak = find_peak_flops(gpus[0].name, precision) if gpus else None
    peak = find_peak_flops(model, precision) or find_peak_flops(model.replace(" ", "-"), precision)  # A100 SXM4 40GB
    return None if own_peak is None or peak is None else peak / own_peak


@dataclass(frozen=True)
class Check:
    """A measured row beside its prediction from the smaller ones of its curve."""

    curve: Curve
    seen: tuple[MeasuredStep, ...]
    row: Row
    predicted: Estimate  # samples/s

    @property
    def error(self) -> float:
        """Predicted over measured throughput, less one."""
        return self.predicted.value / float(self.row[RATE]) - 1

    @property
    def holds(self) -> bool:
        return self.predicted.low <= float(self.row[RATE]) <= self.predicted.high


def check_curves(curves: Iterable[Curve], read: ReadRecord) -> list[Check]:
    """Predict each measured row from the smaller ones of its curve; rows of which nothing is known are left out."""
    checks = []
    for curve in curves:
        for count, row in enumerate(curve.rows[1:], 1):
            batch, part = row["global_batch"] / row["gpus"], replace(curve, rows=curve.rows[:count])
            rates = curve_models.group_rates_by_link(part.rows, read)
            with suppress(InputError):  # it says too little, on nodes with as many devices as the curve has
                prediction = _predict_curve(part, [part], read, rates, None, batch, curve.rows)
                if (rate := prediction.predict_rate(row["gpus"])) is not None:
                    checks.append(Check(curve, prediction.points, row, rate))
    return checks


def rank_predictions(predictions: Sequence[CurvePrediction], devices: int) -> list[tuple[str, Estimate]]:
    """Return the strategies that fit and are measured on several numbers of devices with their samples/s, the fastest
    first."""
    forecasts = [(each.name, each.forecast(devices)) for each in predictions if each.is_rankable]
    ranked = [(name, each.throughput) for name, each in forecasts if each.throughput and each.fits]
    return sorted(ranked, key=lambda each: -each[1].value)
