"""Calibration of the cost model from measured rows.

Operations per second and seconds of the optimizer come from one device without any strategy, the link from isolated
gradient synchronization, the stages of a model-parallel run from its record or its network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalebench.analysis.batch_size import fit_step_time
from scalebench.analysis.prediction.cost_model import (
    LinkRate,
    MachineRates,
    MeasuredSync,
    ModelStage,
    StepWork,
    fit_link_rate,
)
from scalebench.core.errors import InputError
from scalebench.core.json_files import build_record
from scalebench.core.result import Result, StageRecord
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from scalebench.workloads.partition import (
    activation_bytes,
    node_parameter_bytes,
    node_training_flops,
    split_into_stages,
)

RATE_COLUMN = "throughput_samples_per_s"
NO_PROBES_REASON = (
    "measured without the parts of its step: measure.probes=true, and a measure.probe_s above its seconds"
)
LINK_COLUMNS = ("hardware", "machine", "framework", "gpus", "nodes")  # rows that use one link

Row = Mapping[str, Any]
ReadRecord = Callable[[Row], Result]  # returns the complete record of a row; InputError if it was deleted
SyncsByLink = dict[tuple[Any, ...], list[MeasuredSync]]


class DevicePace(NamedTuple):
    """The pace of one device without any strategy: b samples take pass_s + b * sample_s + optimizer_s in a step."""

    pass_s: float  # 0 if only one batch was measured, or smaller ones are faster per sample
    sample_s: float
    optimizer_s: float


def fit_device_pace(bares: Sequence[Row]) -> DevicePace:
    """Fit the pace to bare rows of one device with one or several batches; the optimizer is that of the first row.

    InputError says what was not measured.
    """
    if not bares:
        raise InputError("no bare run on one device was measured: baseline=bare adds it")
    if bares[0]["optimizer_s"] is None:
        raise InputError(f"the bare run was {NO_PROBES_REASON}")
    points = [(float(row["global_batch"]), _pass_seconds(row)) for row in bares if row["optimizer_s"] is not None]
    batch, pass_seconds = points[0]
    if pass_seconds <= 0:
        raise InputError("the optimizer takes all of the bare run's step")
    line = fit_step_time([point for point in points if point[1] > 0])
    optimizer_s = max(0.0, bares[0]["optimizer_s"])  # a difference of two means
    if line is None or line.alpha_s < 0 or line.beta_s <= 0:
        return DevicePace(0.0, pass_seconds / batch, optimizer_s)
    return DevicePace(line.alpha_s, line.beta_s, optimizer_s)


def collect_step_work(data: Row, bare: Row, pace: DevicePace, read: ReadRecord) -> StepWork:
    """Collect the work of a step from a data-parallel row and a bare one; InputError says what is unknown."""
    gradient_bytes = bare["gradient_bytes"] if data["gradient_bytes"] is None else data["gradient_bytes"]
    if bare["flops_per_sample"] is None or gradient_bytes is None:
        raise InputError("what a sample costs, or how many parameters there are, is not known of this model")
    messages = len(message_bytes(data, read)) or 1
    return StepWork(bare["flops_per_sample"], gradient_bytes, messages, pace.optimizer_s, pace.pass_s)


def combine_rates(work: StepWork, pace: DevicePace, link: LinkRate | float | None) -> MachineRates:
    """Combine the pace of a device with its link; InputError if no link is known."""
    if link is None:
        raise InputError(f"no link is known: the data-parallel run did not go well, or was {NO_PROBES_REASON}")
    flops_per_s = work.flops_per_sample / pace.sample_s
    if isinstance(link, LinkRate):
        return MachineRates(flops_per_s, link.bytes_per_s, link.latency_s or 0.0)
    return MachineRates(flops_per_s, link)


def _pass_seconds(row: Row) -> float:
    """Return the seconds of a step without its optimizer."""
    return float(row["global_batch"] / row[RATE_COLUMN] - max(0.0, row["optimizer_s"]))


def group_syncs_by_link(rows: Iterable[Row], read: ReadRecord) -> SyncsByLink:
    """Group the measured synchronizations of data-parallel rows by their link."""
    by_link: SyncsByLink = {}
    for row in rows:
        if row["gpus"] < 2 or not row["sync_isolated_s"] or not (sizes := message_bytes(row, read)):
            continue
        sync = MeasuredSync(row["gpus"], len(sizes), sum(sizes), row["sync_isolated_s"])
        by_link.setdefault(link_key(row), []).append(sync)
    return by_link


def find_link_rate(row: Row, links: SyncsByLink, read: ReadRecord) -> LinkRate | float | None:
    """Return the measured rate of the row's link, else the bytes per second in the hardware's YAML, else None.

    The YAML has one figure for devices of one node and one for devices of several.
    """
    measured = fit_link_rate(links.get(link_key(row), []))
    if measured is not None:
        return measured
    name = "intra_node_bytes_per_s" if row["nodes"] == 1 else "inter_node_bytes_per_s"
    value = (read(row).spec.get("hardware", {}).get("links") or {}).get(name)
    return float(value) if value else None


def link_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in LINK_COLUMNS)


def message_bytes(row: Row, read: ReadRecord) -> list[int]:
    try:
        return read(row).sync.message_bytes
    except InputError:
        return []


MICRO_BATCHES = "micro_batches"  # key of the strategies' options


def find_stages(result: Result) -> list[ModelStage]:
    """Return the stages in the record, else one stage per device that minimizes the operations of the largest.

    Operations are always those of the network: the measured seconds of a stage would be no prediction. InputError for
    a network that is unknown here or cannot be split into so many stages.
    """
    network = _build_recorded_network(result)
    recorded = recorded_stages(result)
    return (
        _read_stages(network, recorded, result.scale.global_batch)
        if recorded
        else _plan_stages(network, result.scale.gpus)
    )


def recorded_stages(result: Result) -> list[StageRecord]:
    """Return the stages of the first replica in order; none if the record lacks one of them."""
    stages = [stage for rank in result.ranks for stage in rank.stages if stage.replica == 0]
    stages.sort(key=lambda stage: stage.index)
    is_complete = bool(stages) and [stage.index for stage in stages] == list(range(stages[0].stages))
    return stages if is_complete else []


def find_micro_batches(result: Result) -> int:
    """Return the micro-batches of the record, else of the strategy's options.

    By default a pipeline has two per stage, which most batches allow; other strategies use the complete batch.
    """
    recorded = recorded_stages(result)
    if recorded:
        return recorded[0].micro_batches
    if not result.scale.strategy.startswith("pipeline"):
        return 1
    options: dict[str, Any] = result.spec.get("strategy", {}).get("options") or {}
    number = options.get(MICRO_BATCHES)
    return number if isinstance(number, int) and number > 0 else 2 * result.scale.gpus


def _build_recorded_network(result: Result) -> Network:
    try:
        model = build_record(ModelSpec, result.spec.get("model", {}), ignore_unknown=True)
    except ValueError as error:
        raise InputError(f"its record lacks the model: {error}") from error
    if model.torch is not None or model.keras is not None:
        raise InputError("only the framework knows the network of a user model, and where to split it")
    return networks.build_network(model)


def _plan_stages(network: Network, devices: int) -> list[ModelStage]:
    costs, parameters = node_training_flops(network), node_parameter_bytes(network)
    index_of = {node.name: index for index, node in enumerate(network.nodes)}
    parts = []
    for stage in split_into_stages(network, devices, costs):
        indices = [index_of[node.name] for node in stage.nodes]
        sent = 0 if stage.index == devices - 1 else activation_bytes(stage)
        share = _divide(sum(costs[i] for i in indices), costs)
        parts.append(ModelStage(share, sum(parameters[i] for i in indices), sent))
    return parts


def _read_stages(network: Network, stages: list[StageRecord], global_batch: int) -> list[ModelStage]:
    """Return the recorded stages; InputError if their names are not those of the network's operations."""
    costs = node_training_flops(network)
    index_of = {node.name: index for index, node in enumerate(network.nodes)}
    parts = []
    for stage in stages:
        if stage.last not in index_of or stage.first not in index_of:
            raise InputError(f"its record has a stage from {stage.first} to {stage.last}, which {network.name} lacks")
        flops = sum(costs[index_of[stage.first] : index_of[stage.last] + 1])
        parts.append(ModelStage(_divide(flops, costs), stage.parameter_bytes, (stage.sent_bytes or 0) / global_batch))
    return parts


def _divide(part: float, costs: list[float]) -> float:
    total = sum(costs)
    return part / total if total else 0.0
