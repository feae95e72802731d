"""Extrapolation of a scaling curve: a step model drawn through the measured points, and the interval around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalebench.analysis.prediction.step_model import (
    CUT_MODEL,
    NO_SYNC,
    FloatArray,
    StepModel,
    StepParts,
    predict_parts,
    solve_sample_s,
)

FACTOR_FLOOR = 0.01  # of the computation: overheads below it are noise, and no ratio of them is a correction
MIN_FACTOR, MAX_FACTOR = 0.1, 10.0
# The scale of an error, in logarithms of seconds: a floor, and more for each doubling and for the predicted loss.
ERROR_FLOOR, ERROR_PER_DOUBLING, ERROR_PER_LOSS = 0.012, 0.015, 0.6
MAX_ERROR_SCALE = 0.3
UNMEASURED_NETWORK_FACTOR = 1.5  # of the scale, on several nodes where nothing between nodes was measured
ONE_POINT, ONE_NODE, SEVERAL_NODES = "one_point", "one_node", "several_nodes"
LIMITS_FILE = Path(__file__).with_name("published_series.yaml")
ErrorLimits = Mapping[str, tuple[float, float]]  # by what is measured of a curve, in error scales


class MeasuredStep(NamedTuple):
    """A measured mean step."""

    devices: int
    batch: float  # samples of a device
    step_s: float


@dataclass(frozen=True)
class Extrapolation:
    """A step model through measured points. `scale` takes it through the last one; with `slope`, the power law through
    the points' losses, the prediction is the mean of both on a logarithmic scale."""

    model: StepModel
    points: tuple[MeasuredStep, ...]  # in ascending order
    scale: float = 1.0
    slope: float | None = None

    @property
    def last(self) -> MeasuredStep:
        return self.points[-1]

    def parts(self, devices: Any, batch: Any) -> StepParts:
        return predict_parts(self.model, devices, batch)

    def step_s(self, devices: Any, batch: Any) -> FloatArray:
        """Return the predicted seconds of a step; arrays of device counts and of samples per device."""
        devices, batch = np.broadcast_arrays(np.asarray(devices, float), np.asarray(batch, float))
        parts = self.parts(devices, batch)
        predicted = self.scale * parts.step_s
        if self.slope is None:
            return predicted
        compute = work_s(self.model, batch) / work_s(self.model, self.last.batch)
        power = self.last.step_s * compute * (devices / self.last.devices) ** self.slope
        beyond = (devices > self.last.devices) & (self.count_nodes(devices) > 1)
        mean = np.maximum(np.sqrt(predicted * power), self.scale * parts.host_s)  # no power law knows the host's limit
        return np.where(beyond, mean, predicted)

    def count_nodes(self, devices: Any) -> FloatArray:
        return self.model.links.count_nodes(np.asarray(devices, float))

    @property
    def measured(self) -> str:
        """The kind of measurement: ONE_POINT, or several, on ONE_NODE or on SEVERAL_NODES."""
        if len(self.points) == 1:
            return ONE_POINT
        nodes = self.count_nodes([point.devices for point in self.points])
        return SEVERAL_NODES if nodes[-1] > nodes[0] else ONE_NODE

    def error_scale(self, devices: Any, batch: Any, knows_network: bool = False) -> FloatArray:
        """Return the scale of the error, in logarithms of seconds; 0 for the last measured point."""
        devices, batch = np.broadcast_arrays(np.asarray(devices, float), np.asarray(batch, float))
        loss = self.parts(devices, batch).loss

        def distant(point: MeasuredStep) -> FloatArray:
            lost = loss - self.parts(point.devices, point.batch).loss
            lost = np.where(devices < self.last.devices, np.abs(lost), np.maximum(lost, 0))
            doublings = np.abs(np.log2(devices / point.devices))
            return np.asarray(ERROR_FLOOR + ERROR_PER_DOUBLING * doublings + ERROR_PER_LOSS * lost)

        # The first and the last point are met; what is between is as uncertain as from the nearer one.
        from_last = distant(self.last)
        scale = np.where(devices < self.last.devices, np.minimum(distant(self.points[0]), from_last), from_last)
        if not knows_network and self.count_nodes(self.last.devices) == 1:
            scale = scale * np.where(self.count_nodes(devices) > 1, UNMEASURED_NETWORK_FACTOR, 1.0)
        scale = np.minimum(scale, MAX_ERROR_SCALE)
        return np.where((devices == self.last.devices) & (batch == self.last.batch), 0.0, scale)


@cache
def load_limits() -> ErrorLimits:
    """Return the limits of residuals on published curves."""
    from scalebench.core.config_files import read_yaml

    limits = read_yaml(LIMITS_FILE)["limits"]
    return {name: (float(low), float(high)) for name, (low, high) in limits.items()}


def work_s(model: StepModel, batch: Any) -> Any:
    return model.pass_s + model.sample_s * batch


def extrapolate(model: StepModel, points: Sequence[MeasuredStep]) -> Extrapolation:
    """Draw the model through points on different numbers of devices.

    The first one gives the seconds of a sample. Several correct the overheads by one factor, and the last one is met
    exactly. ValueError for no points.
    """
    if not points:
        raise ValueError("no points")
    points = tuple(sorted(points))
    alone = replace(model, sync=NO_SYNC)
    if any(float(predict_parts(alone, *point[:2]).host_s) > point.step_s for point in points):
        # The host's limit was taken at the last point: workers that compute are taken also while they wait, and fewer
        # wait less.
        model = replace(model, host_from=float(points[-1].devices))
    slope = None
    if len(points) > 1:  # the exponent of a power law through the points, per work of a device
        x = np.log([point.devices for point in points])
        y = np.log([point.step_s / work_s(model, point.batch) for point in points])
        slope = max(0.0, float(np.polyfit(x, y, 1)[0]))
    if slope is not None and model.sync in CUT_MODEL:
        model = replace(model, slope=slope)
    model = solve_sample_s(model, *points[0])
    if len(points) == 1:
        return Extrapolation(model, points)
    last = points[-1]
    compute = work_s(model, last.batch) + float(predict_parts(model, last.devices, last.batch).optimizer_s)
    modelled = float(predict_parts(model, last.devices, last.batch).step_s) / compute - 1
    factor = (last.step_s / compute - 1 + FACTOR_FLOOR) / (modelled + FACTOR_FLOOR)
    model = replace(model, overhead_factor=float(np.clip(factor, MIN_FACTOR, MAX_FACTOR)))
    scale = last.step_s / float(predict_parts(model, last.devices, last.batch).step_s)
    return Extrapolation(model, points, scale, slope)
