"""The seconds of a step on any number of devices: computation, optimizer, exposed synchronization, and growth.

Closed forms over arrays of device counts. T = max(host, compute + optimizer + sync + growth); sources stand at each
part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
# The kinds of synchronization: of replicas, of shards, of shards with copies on other nodes, of replicas with a sharded
# optimizer, of split layers, of variables in one place with and without overlap, of a model cut into stages, of
# pipelines side by side, and none.
ALL_REDUCE, SHARDED, HSDP, ZERO1, TENSOR, ONE_COPY, IN_GRAPH, STAGES, HYBRID, NO_SYNC = SYNC_KINDS = (
    "all_reduce", "sharded", "hsdp", "zero1", "tensor", "one_copy", "in_graph", "stages", "hybrid", "none",
)  # fmt: skip
LINK_EFFICIENCIES = {"nvlink": 0.8, "peer": 0.7, "host": 0.3}  # reached share of a nominal rate, within a node
NETWORK_EFFICIENCY = 0.7  # likewise, between nodes
# Of one message and hop, ring, Simple protocol: NVIDIA/nccl@5067397 src/graph/tuning.cc.
LATENCIES_S = {"nvlink": 3.4e-6, "peer": 5.7e-6, "host": 5.7e-6}
NETWORK_LATENCY_S = 14e-6
LAUNCH_S = 8.4e-6  # of a message: baseLatency of the same file
TREE_EFFICIENCY = 0.92  # likewise
BACKWARD_SHARE = 2 / 3  # of a pass: two of three matrix products
OVERLAP = 0.8  # of the backward pass that hides synchronization, where it was not measured
GROWTH = 0.04  # all losses that grow slowly with n, as the deviation of a device's step, where it was not measured
HOST_COPY_SHARE = 0.44  # of a host link's time that each further device adds where one device holds the variables


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

    `growth` is the deviation of a device's step as a share. Of split layers, `sync_bytes` are those of one sample.
    """

    sample_s: float
    links: Links
    sync: str = ALL_REDUCE
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
    cut_bytes: float = 0.0  # activations of a sample between two stages
    stages: int = 0  # of one replica, or shards of one copy; 0: one on each device, or on each of a node
    micro_batches: int = 0  # 0: two for each stage
    work_imbalance: float = 1.0  # the largest stage over the mean one, in operations
    state_imbalance: float = 1.0  # likewise, in parameters
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
    optimizer = model.optimizer_s * _state_share(model, devices)
    growth = model.growth * compute * expected_maximum(devices) * model.overhead_factor
    sync = exposed_sync_s(model, devices, batch, compute)
    beside = devices if model.nodes_share_cores else np.minimum(devices, model.links.devices_per_node)
    host = np.where(devices < model.host_from, 0.0, beside * batch * model.host_sample_s)
    if model.computes_on_host:
        host = np.where((host > 0) & (model.links.count_nodes(devices) > 1), host + sync, host)
    return StepParts(compute, optimizer, sync * model.overhead_factor, growth, host)


def _state_share(model: StepModel, devices: FloatArray) -> FloatArray:
    """Return the share of the parameters that a device updates, the largest of all devices."""
    if model.sync in (SHARDED, ZERO1, HSDP):
        return 1 / count_shards(model, devices)
    if model.sync in (STAGES, HYBRID):
        return np.minimum(1.0, model.state_imbalance / _count_stages(model, devices))
    return np.ones_like(devices)


def count_shards(model: StepModel, devices: Any) -> FloatArray:
    """Return the devices that a copy of the state is distributed over."""
    most = float(model.stages or model.links.devices_per_node) if model.sync == HSDP else math.inf
    return np.asarray(np.minimum(devices, most), float)


def _count_stages(model: StepModel, devices: FloatArray) -> FloatArray:
    return np.minimum(devices, model.stages) if model.stages else devices


def expected_maximum(devices: FloatArray) -> FloatArray:
    """Return how many standard deviations the slowest of n normal variables is expected above their mean.

    Source: Blom 1958, "Statistical Estimates and Transformed Beta-Variables". It is 0 for one device.
    """
    from scipy.special import ndtri

    return np.asarray(ndtri((devices - 0.375) / (devices + 0.25)))


def all_reduce_s(links: Links, devices: FloatArray, size: float, messages: int = 1, volume: float = 2.0) -> FloatArray:
    """Return the seconds of `messages` all-reduces of `size` bytes in total: a ring, or between nodes a tree if faster.

    `volume` is 2 for an all-reduce, 3 for what full sharding sends. Sources: Patarasuk and Yuan 2009, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations"; Hockney 1994, "The communication challenge for MPP";
    the tree and all latencies as in NVIDIA/nccl@5067397 src/graph/tuning.cc.
    """
    nodes = links.count_nodes(devices)
    rate, inside = links.rate(nodes), np.minimum(devices, links.devices_per_node)
    hops = (devices - nodes) * links.latency_s + (nodes - 1) * links.network_latency_s
    ring = volume * (devices - 1) / devices * size / rate + messages * volume * hops
    tree_hops = (inside - 1) * links.latency_s + np.log2(nodes) * links.network_latency_s
    tree = volume * size / TREE_EFFICIENCY / rate + messages * volume * tree_hops
    seconds = np.where(nodes > 1, np.minimum(ring, tree), ring) + messages * links.launch_s
    return np.where(devices > 1, seconds, 0.0)


def one_copy_s(links: Links, devices: FloatArray, size: float) -> FloatArray:
    """Return the seconds in which variables that one place holds go to all devices, and gradients come back."""
    nodes = links.count_nodes(devices)
    inside = np.minimum(devices, links.devices_per_node)
    inside_rate, between_rate = links.rate(np.ones(1))[0], links.rate(np.full(1, 2.0))[0]
    seconds = (
        2 * size / inside_rate * (1 + HOST_COPY_SHARE * (inside - 1)) + 4 * size * (nodes - 1) / nodes / between_rate
    )
    return np.where(devices > 1, seconds, 0.0)


def sum_copies_s(links: Links, devices: FloatArray, parts: FloatArray, size: float) -> FloatArray:
    """Return the seconds in which the copies of each of so many parts of `size` bytes in all are summed, in rings.

    Neighbours hold different parts: the rings of all parts cross all nodes, and those of a node share its network.
    """
    copies, nodes = devices / parts, links.count_nodes(devices)
    rings = np.where(nodes > 1, np.minimum(parts, links.devices_per_node), 1)  # that share a link
    return 2 * (copies - 1) / copies * size / parts * rings / links.rate(nodes)


def exposed_sync_s(model: StepModel, devices: FloatArray, batch: FloatArray, compute_s: FloatArray) -> FloatArray:
    """Return the seconds of synchronization that computation does not hide, and those in which stages wait."""
    links, size, backward = model.links, model.sync_bytes, model.backward_share
    if model.sync == NO_SYNC:
        return np.zeros_like(devices)
    if model.sync in (ONE_COPY, IN_GRAPH):
        seconds = one_copy_s(links, devices, size)
        return hide_sync(seconds, model, compute_s, 1.0) if model.sync == ONE_COPY else seconds
    if model.sync == STAGES:
        return _stage_wait_s(model, devices, batch, compute_s)
    if model.sync == HYBRID:  # each stage sums its gradients over the replicas
        replicas = sum_copies_s(links, devices, _count_stages(model, devices), size)
        return _stage_wait_s(model, devices, batch, compute_s) + replicas
    if model.sync == TENSOR:  # activations of all samples, for which each layer waits
        sent = all_reduce_s(links, devices, 1.0, 0) * size * batch * devices
        return sent + all_reduce_s(links, devices, 0.0, model.messages)
    if model.sync == HSDP:  # shards are gathered in a group, and each one's gradients summed over the groups
        shards = count_shards(model, devices)
        seconds = all_reduce_s(links, shards, size, model.messages, 3.0) + sum_copies_s(links, devices, shards, size)
        return hide_sync(seconds, model, compute_s, 1.0)
    seconds = all_reduce_s(links, devices, size, model.messages, 3.0 if model.sync == SHARDED else 2.0)
    if model.sync == ZERO1:  # gathers the updated weights after the backward pass
        return seconds / 2 + hide_sync(seconds / 2, model, compute_s, backward)
    return hide_sync(seconds, model, compute_s, 1.0 if model.sync == SHARDED else backward)


def hide_sync(seconds: FloatArray, model: StepModel, compute_s: FloatArray, share: float) -> FloatArray:
    """Return what is left of `seconds` of synchronization behind `share` of the computation.

    Gradients arrive evenly over the overlapped part of the backward pass in equal messages, and each is sent when it is
    there and the one before is done: max(C / k, C - phi T_b (1 - 1 / k)) remains, which is exact for that pipeline
    (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training").
    """
    rest = 1 / model.messages
    return np.maximum(seconds * rest, seconds - model.overlap * share * compute_s * (1 - rest))


def _stage_wait_s(model: StepModel, devices: FloatArray, batch: FloatArray, compute_s: FloatArray) -> FloatArray:
    """Return the seconds in which a stage waits, for the others and for transfers, which do not overlap.

    The first micro-batch goes through all stages, each other one follows after the slowest stage: of p equal stages and
    m micro-batches that is the bubble of (p - 1) / m (Huang et al. 2019, "GPipe", section 2.3; the same for 1F1B with a
    flush, Narayanan et al. 2021). If the slowest stage is not the one that sends most this is an upper limit.
    """
    stages = _count_stages(model, devices)
    micro_batches = np.full_like(devices, model.micro_batches) if model.micro_batches else 2 * stages
    samples = batch * stages / micro_batches
    largest = np.minimum(1.0, model.work_imbalance / stages)
    worked = (model.pass_s + samples * model.sample_s) * (1 + (micro_batches - 1) * largest)
    nodes = model.links.count_nodes(stages)
    latency = np.where(nodes > 1, model.links.network_latency_s, model.links.latency_s)
    transfer = latency + samples * model.cut_bytes / model.links.rate(nodes)
    return worked - compute_s + np.where(stages > 1, 2 * (stages + micro_batches - 2) * transfer, 0.0)


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
