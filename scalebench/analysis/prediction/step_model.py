"""The seconds of a step on any number of devices: computation, optimizer, exposed synchronization, and growth.

Closed forms over arrays of device counts. T = max(host, compute + optimizer + sync + growth); sources stand at each
part. All strategies with copies or shards of the model have the time of a ring: what else they send is in the factor
that measured points give. A model that is cut into parts has a power law through its points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
NO_SYNC = "none"
SHARDED, ZERO1, HSDP = SHARDED_STATE = ("sharded", "zero1", "hsdp")
CUT_MODEL = ("stages", "pipeline", "hybrid", "tensor", "fsdp_tp")
SYNC_KINDS = ("all_reduce", "one_copy", "in_graph", *SHARDED_STATE, *CUT_MODEL, NO_SYNC)  # `sync` in strategies' YAML
LINK_EFFICIENCIES = {"nvlink": 0.8, "peer": 0.7, "host": 0.3}  # reached share of a nominal rate, within a node
NETWORK_EFFICIENCY = 0.7  # likewise, between nodes
# Of one message and hop, ring, Simple protocol: NVIDIA/nccl@5067397 src/graph/tuning.cc.
LATENCIES_S = {"nvlink": 3.4e-6, "peer": 5.7e-6, "host": 5.7e-6}
NETWORK_LATENCY_S = 14e-6
LAUNCH_S = 8.4e-6  # of a message: baseLatency of the same file
TREE_EFFICIENCY = 0.92  # likewise
BACKWARD_SHARE = 2 / 3  # of a pass: two of three matrix products
OVERLAP = 0.8  # of the backward pass that hides synchronization, where it was not measured
OPTIMIZER_STATE_SHARE = 0.5  # of weights, gradients and Adam's two moments, all float32
GROWTH = 0.04  # all losses that grow slowly with n, as the deviation of a device's step, where it was not measured


@dataclass(frozen=True)
class Links:
    """The links of a machine. Rates are reached ones; an unknown network counts as fast as the links in a node."""

    devices_per_node: float  # infinity: one node has all
    bytes_per_s: float | None  # of a device to its neighbour in the node
    network_bytes_per_s: float | None  # of a node
    latency_s: float = LATENCIES_S["nvlink"]
    network_latency_s: float = NETWORK_LATENCY_S
    launch_s: float = LAUNCH_S
    oversubscription: float = 1.0  # of the network, above one full node

    def count_nodes(self, devices: FloatArray) -> FloatArray:
        return np.maximum(1.0, np.ceil(devices / self.devices_per_node))

    def rate(self, nodes: FloatArray) -> FloatArray:
        """Return the bytes per second of a ring: that of its slowest link."""
        inside = math.inf if self.bytes_per_s is None else self.bytes_per_s
        network = inside if self.network_bytes_per_s is None else self.network_bytes_per_s / self.oversubscription
        return np.where(nodes > 1, min(inside, network), inside)


def make_links(
    devices_per_node: float, kind: str = "nvlink", inside: float | None = None, network: float | None = None
) -> Links:
    """Make links of nominal rates in bytes per second; `kind` is nvlink, peer (PCIe) or host (PCIe through memory)."""
    return Links(
        devices_per_node,
        inside and inside * LINK_EFFICIENCIES[kind],
        network and network * NETWORK_EFFICIENCY,
        LATENCIES_S[kind],
    )


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
    shards: int = 0  # of one copy of the state; 0: one on each device of a node
    slope: float = 0.0  # of a step over the devices that a model is cut for, both as logarithms
    overhead_factor: float = 1.0  # from several measured points


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
    """Predict the parts of a step with `batch` samples per device; both may be arrays."""
    devices, batch = np.broadcast_arrays(np.asarray(devices, float), np.asarray(batch, float))
    compute = model.pass_s + batch * model.sample_s
    updated_share = 1 / count_shards(model, devices) if model.sync in SHARDED_STATE else np.ones_like(devices)
    optimizer = model.optimizer_s * updated_share
    growth = model.growth * compute * expected_maximum(devices) * model.overhead_factor
    if model.sync == NO_SYNC:
        sync = np.zeros_like(devices)
    elif model.sync in CUT_MODEL:  # all that a step takes longer than on one device
        sync = compute * (devices**model.slope - 1)
    else:
        seconds = all_reduce_s(model.links, devices, model.sync_bytes, model.messages)
        sync = hide_sync(seconds, model, compute)
    beside = devices if model.nodes_share_cores else np.minimum(devices, model.links.devices_per_node)
    host = np.where(devices < model.host_from, 0.0, beside * batch * model.host_sample_s)
    if model.computes_on_host:
        host = np.where((host > 0) & (model.links.count_nodes(devices) > 1), host + sync, host)
    return StepParts(compute, optimizer, sync * model.overhead_factor, growth, host)


def count_shards(model: StepModel, devices: Any) -> FloatArray:
    """Return the devices that a copy of the state is distributed over."""
    most = float(model.shards or model.links.devices_per_node) if model.sync == HSDP else math.inf
    return np.asarray(np.minimum(devices, most), float)


def state_share(model: StepModel, devices: int) -> float:
    """Return the share of weights, gradients and the optimizer's state that each of so many devices has."""
    if model.sync in (SHARDED, HSDP, "stages", "pipeline", "fsdp_tp"):
        return 1 / float(count_shards(model, devices))
    return 1 - OPTIMIZER_STATE_SHARE + OPTIMIZER_STATE_SHARE / devices if model.sync == ZERO1 else 1.0


def expected_maximum(devices: FloatArray) -> FloatArray:
    """Return how many standard deviations the slowest of n normal variables is expected above their mean.

    Source: Blom 1958, "Statistical Estimates and Transformed Beta-Variables". It is 0 for one device.
    """
    from scipy.special import ndtri

    return np.asarray(ndtri((devices - 0.375) / (devices + 0.25)))


def all_reduce_s(links: Links, devices: FloatArray, size: float, messages: int = 1) -> FloatArray:
    """Return the seconds of `messages` all-reduces of `size` bytes in total: a ring, or between nodes a tree if faster.

    Sources: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"; Hockney
    1994, "The communication challenge for MPP"; the tree and all latencies: NVIDIA/nccl@5067397 src/graph/tuning.cc.
    """
    nodes = links.count_nodes(devices)
    rate, inside = links.rate(nodes), np.minimum(devices, links.devices_per_node)
    hops = (devices - nodes) * links.latency_s + (nodes - 1) * links.network_latency_s
    ring = 2 * (devices - 1) / devices * size / rate + messages * 2 * hops
    tree_hops = (inside - 1) * links.latency_s + np.log2(nodes) * links.network_latency_s
    tree = 2 * size / TREE_EFFICIENCY / rate + messages * 2 * tree_hops
    seconds = np.where(nodes > 1, np.minimum(ring, tree), ring) + messages * links.launch_s
    return np.where(devices > 1, seconds, 0.0)


def hide_sync(seconds: FloatArray, model: StepModel, compute_s: FloatArray) -> FloatArray:
    """Return what is left of `seconds` of synchronization behind the backward pass.

    Gradients arrive evenly over the overlapped part of the backward pass in equal messages, and each is sent when it is
    there and the one before is done: max(C / k, C - phi T_b (1 - 1 / k)) remains, which is exact for that pipeline
    (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training").
    """
    rest = 1 / model.messages
    return np.maximum(seconds * rest, seconds - model.overlap * model.backward_share * compute_s * (1 - rest))


def solve_sample_s(model: StepModel, devices: float, batch: float, step_s: float) -> StepModel:
    """Return the model with the seconds of a sample that give this measured step, by bisection."""
    half_batch = model.pass_s / model.sample_s if model.sample_s else 0.0
    low, high = 0.0, step_s / batch
    for _ in range(40):  # to 12 digits
        middle = (low + high) / 2
        model = replace(model, sample_s=middle, pass_s=half_batch * middle)
        # Where the host is the limit, rounding alone would make every step too long.
        too_long = predict_parts(model, devices, batch).step_s > step_s * (1 + 1e-12)
        low, high = (low, middle) if too_long else (middle, high)
    return model
