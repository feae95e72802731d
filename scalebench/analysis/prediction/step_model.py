"""The seconds of a step on any number of devices, drawn through measured points, and the interval around them.

A step takes max(host, computation + optimizer + exposed synchronization + growth), over arrays of device counts. All
strategies with copies or shards of the model have the time of a ring without latencies: what else they send is in the
factor that measured points give. A model that is cut into parts has a power law through its points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
NO_SYNC = "none"
SHARDED_STATE = ("sharded", "zero1", "hsdp")
CUT_MODEL = ("stages", "pipeline", "hybrid", "tensor", "fsdp_tp")
SYNC_KINDS = ("all_reduce", "one_copy", "in_graph", *SHARDED_STATE, *CUT_MODEL, NO_SYNC)  # `sync` in strategies' YAML
LINK_EFFICIENCIES = {"nvlink": 0.8, "peer": 0.7, "host": 0.3}  # reached share of a nominal rate, within a node
NETWORK_EFFICIENCY = 0.7  # likewise, between nodes
BACKWARD_SHARE = 2 / 3  # of a pass: two of three matrix products
OVERLAP = 0.8  # of the backward pass that hides synchronization, where it was not measured
GROWTH = 0.04  # all losses that grow slowly with n, as the deviation of a device's step, where it was not measured
FACTOR_FLOOR = 0.01  # of the computation: overheads below it are noise, and no ratio of them is a correction
MIN_FACTOR, MAX_FACTOR = 0.1, 10.0
# The scale of an error, in logarithms of seconds: a floor, and more for each doubling and for the predicted loss.
ERROR_FLOOR, ERROR_PER_DOUBLING, ERROR_PER_LOSS = 0.012, 0.015, 0.6
MAX_ERROR_SCALE = 0.3
UNMEASURED_NETWORK_FACTOR = 1.5  # of the scale, on several nodes where nothing between nodes was measured
ONE_POINT, ONE_NODE, SEVERAL_NODES = "one_point", "one_node", "several_nodes"
LIMITS_FILE = Path(__file__).with_name("published_series.yaml")
ErrorLimits = Mapping[str, tuple[float, float]]  # by what is measured of a curve, in error scales


@dataclass(frozen=True)
class Links:
    """The links of a machine. Rates are reached ones; an unknown network counts as fast as the links in a node."""

    devices_per_node: float  # infinity: one node has all
    bytes_per_s: float | None  # of a device to its neighbour in the node
    network_bytes_per_s: float | None  # of a node

    def count_nodes(self, devices: Any) -> FloatArray:
        return np.maximum(1.0, np.ceil(np.asarray(devices, float) / self.devices_per_node))

    def rate(self, nodes: FloatArray) -> FloatArray:
        """Return the bytes per second of a ring: that of its slowest link."""
        inside = math.inf if self.bytes_per_s is None else self.bytes_per_s
        network = inside if self.network_bytes_per_s is None else self.network_bytes_per_s
        return np.where(nodes > 1, min(inside, network), inside)


def make_links(
    devices_per_node: float, kind: str = "nvlink", inside: float | None = None, network: float | None = None
) -> Links:
    """Make links of nominal rates in bytes per second; `kind` is nvlink, peer (PCIe) or host (PCIe through memory)."""
    return Links(
        devices_per_node, inside and inside * LINK_EFFICIENCIES[kind], network and network * NETWORK_EFFICIENCY
    )


def ring_bytes(size: float, devices: Any) -> Any:
    """Return the bytes that each device sends in a ring all-reduce of `size` bytes.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return 2 * (devices - 1) / devices * size


@dataclass(frozen=True)
class StepModel:
    """The step of one device and the synchronization with the others. Seconds are of one step, bytes of its gradients.

    `growth` is the deviation of a device's step as a share.
    """

    sample_s: float
    links: Links
    sync: str = "all_reduce"
    sync_bytes: float = 0.0
    messages: int = 1
    pass_s: float = 0.0  # does not depend on the samples
    optimizer_s: float = 0.0
    backward_share: float = BACKWARD_SHARE
    overlap: float = OVERLAP
    growth: float = GROWTH
    host_sample_s: float = 0.0  # seconds of a node's processors for a sample
    host_from: float = 0.0  # devices; fewer were measured to be faster than that allows
    computes_on_host: bool = False  # the devices are processors, which wait for the network
    nodes_share_cores: bool = False  # as namespaces, containers or virtual machines of one computer
    slope: float = 0.0  # of a step over the devices that a model is cut for, both as logarithms
    overhead_factor: float = 1.0  # from several measured points

    def work_s(self, batch: Any) -> Any:
        return self.pass_s + self.sample_s * batch


@dataclass(frozen=True)
class StepParts:
    """The parts of a step by number of devices, in seconds. `host_s` is a limit of its own, and not added."""

    compute_s: FloatArray
    optimizer_s: FloatArray
    sync_s: FloatArray
    growth_s: FloatArray
    host_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        return np.maximum(self.host_s, self.sum_s)

    @property
    def sum_s(self) -> FloatArray:
        """The step without the limit of the host."""
        return self.compute_s + self.optimizer_s + self.sync_s + self.growth_s

    def host_share(self, computes_on_host: bool) -> FloatArray:
        """The share of a step in which the host limits it: all of it, or where devices are processors what it adds."""
        return np.where(self.host_s < self.sum_s, 0.0, 1 - self.sum_s / self.step_s if computes_on_host else 1.0)

    @property
    def loss(self) -> FloatArray:
        """The share of a step that is not one device's own work."""
        return 1 - (self.compute_s + self.optimizer_s) / self.step_s


def predict_parts(model: StepModel, devices: Any, batch: Any) -> StepParts:
    """Predict the parts of a step with `batch` samples per device; both may be arrays.

    Gradients arrive evenly over the overlapped part of the backward pass in k equal messages, and each is sent when it
    is there and the one before is done: of C seconds of synchronization max(C / k, C - phi T_b (1 - 1 / k)) remains,
    which is exact for that pipeline (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
    Training").
    """
    devices, batch = np.broadcast_arrays(np.asarray(devices, float), np.asarray(batch, float))
    compute, nodes = model.work_s(batch), model.links.count_nodes(devices)
    updated_share = 1 / devices if model.sync in SHARDED_STATE else np.ones_like(devices)
    growth = model.growth * compute * expected_maximum(devices) * model.overhead_factor
    if model.sync == NO_SYNC:
        sync = np.zeros_like(devices)
    elif model.sync in CUT_MODEL:  # all that a step takes longer than on one device
        sync = compute * (devices**model.slope - 1)
    else:
        seconds, rest = ring_bytes(model.sync_bytes, devices) / model.links.rate(nodes), 1 / model.messages
        hidden = model.overlap * model.backward_share * compute * (1 - rest)
        sync = np.maximum(seconds * rest, seconds - hidden)
    beside = devices if model.nodes_share_cores else np.minimum(devices, model.links.devices_per_node)
    host = np.where(devices < model.host_from, 0.0, beside * batch * model.host_sample_s)
    if model.computes_on_host:
        host = np.where((host > 0) & (nodes > 1), host + sync, host)
    return StepParts(compute, model.optimizer_s * updated_share, sync * model.overhead_factor, growth, host)


def expected_maximum(devices: FloatArray) -> FloatArray:
    """Return how many standard deviations the slowest of n normal variables is expected above their mean.

    Source: Blom 1958, "Statistical Estimates and Transformed Beta-Variables". It is 0 for one device.
    """
    from scipy.special import ndtri

    return np.asarray(ndtri((devices - 0.375) / (devices + 0.25)))


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

    def step_s(self, devices: Any, batch: Any) -> FloatArray:
        """Return the predicted seconds of a step; arrays of device counts and of samples per device."""
        devices, batch = np.broadcast_arrays(np.asarray(devices, float), np.asarray(batch, float))
        parts, model = predict_parts(self.model, devices, batch), self.model
        predicted = self.scale * parts.step_s
        if self.slope is None:
            return predicted
        compute = model.work_s(batch) / model.work_s(self.last.batch)
        power = self.last.step_s * compute * (devices / self.last.devices) ** self.slope
        beyond = (devices > self.last.devices) & (model.links.count_nodes(devices) > 1)
        mean = np.maximum(np.sqrt(predicted * power), self.scale * parts.host_s)  # no power law knows the host's limit
        return np.where(beyond, mean, predicted)

    @property
    def measured(self) -> str:
        """The kind of measurement: ONE_POINT, or several, on ONE_NODE or on SEVERAL_NODES."""
        first, last = (self.model.links.count_nodes(point.devices) for point in (self.points[0], self.last))
        return ONE_POINT if len(self.points) == 1 else SEVERAL_NODES if last > first else ONE_NODE

    def error_scale(self, devices: Any, batch: Any, knows_network: bool = False) -> FloatArray:
        """Return the scale of the error, in logarithms of seconds; 0 for the last measured point."""
        devices, batch = np.broadcast_arrays(np.asarray(devices, float), np.asarray(batch, float))
        loss, count_nodes = predict_parts(self.model, devices, batch).loss, self.model.links.count_nodes

        def distant(point: MeasuredStep) -> FloatArray:
            lost = loss - predict_parts(self.model, point.devices, point.batch).loss
            lost = np.where(devices < self.last.devices, np.abs(lost), np.maximum(lost, 0))
            doublings = np.abs(np.log2(devices / point.devices))
            return np.asarray(ERROR_FLOOR + ERROR_PER_DOUBLING * doublings + ERROR_PER_LOSS * lost)

        # The first and the last point are met; what is between is as uncertain as from the nearer one.
        from_last = distant(self.last)
        scale = np.where(devices < self.last.devices, np.minimum(distant(self.points[0]), from_last), from_last)
        if not knows_network and count_nodes(self.last.devices) == 1:
            scale = scale * np.where(count_nodes(devices) > 1, UNMEASURED_NETWORK_FACTOR, 1.0)
        scale = np.minimum(scale, MAX_ERROR_SCALE)
        return np.where((devices == self.last.devices) & (batch == self.last.batch), 0.0, scale)


@cache
def load_limits() -> ErrorLimits:
    """Return the limits of residuals on published curves."""
    from scalebench.core.config_files import read_yaml

    limits = read_yaml(LIMITS_FILE)["limits"]
    return {name: (float(low), float(high)) for name, (low, high) in limits.items()}


def extrapolate(model: StepModel, points: Sequence[MeasuredStep]) -> Extrapolation:
    """Draw the model through points on different numbers of devices.

    The first one gives the seconds of a sample. Several correct the overheads by one factor, and the last one is met
    exactly. ValueError for no points.
    """
    if not points:
        raise ValueError("no points")
    points = tuple(sorted(points))
    first, last = points[0], points[-1]
    alone = replace(model, sync=NO_SYNC)
    if any(float(predict_parts(alone, *point[:2]).host_s) > point.step_s for point in points):
        # The host's limit was taken at the last point: workers that compute are taken also while they wait, and fewer
        # wait less.
        model = replace(model, host_from=float(last.devices))
    slope = None
    if len(points) > 1:  # the exponent of a power law through the points, per work of a device
        x = np.log([point.devices for point in points])
        y = np.log([point.step_s / model.work_s(point.batch) for point in points])
        slope = max(0.0, float(np.polyfit(x, y, 1)[0]))
        model = replace(model, slope=slope) if model.sync in CUT_MODEL else model
    # The seconds of a sample that give the first step, by bisection to 12 digits.
    half_batch, low, high = model.pass_s / model.sample_s if model.sample_s else 0.0, 0.0, first.step_s / first.batch
    for _ in range(40):
        middle = (low + high) / 2
        model = replace(model, sample_s=middle, pass_s=half_batch * middle)
        # Where the host is the limit, rounding alone would make every step too long.
        too_long = predict_parts(model, *first[:2]).step_s > first.step_s * (1 + 1e-12)
        low, high = (low, middle) if too_long else (middle, high)
    if len(points) == 1:
        return Extrapolation(model, points)
    parts = predict_parts(model, *last[:2])
    compute = float(parts.compute_s + parts.optimizer_s)
    overheads = [step_s / compute - 1 + FACTOR_FLOOR for step_s in (last.step_s, float(parts.step_s))]
    model = replace(model, overhead_factor=float(np.clip(overheads[0] / overheads[1], MIN_FACTOR, MAX_FACTOR)))
    return Extrapolation(model, points, last.step_s / float(predict_parts(model, *last[:2]).step_s), slope)
