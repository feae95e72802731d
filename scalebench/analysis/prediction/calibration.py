"""What a model takes and what a machine gives, of rows that were measured: operations a second of a device without any
strategy, the optimizer's seconds, and the link by the exchange of gradients alone. Layer 1.

The stages that a model-parallel run has, or would have: from its record, else from its network. Layer 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalebench.analysis.batch_size import fit_step_time
from scalebench.analysis.prediction.cost_model import MeasuredSync, LinkRate, MachineRates, ModelStage, StepWork, fit_link_rate
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
NO_PROBES_REASON = "measured without the parts of its update: measure.probes=true, and a measure.probe_s above its seconds"
LINK_COLUMNS = ("hardware", "machine", "framework", "gpus", "nodes")  # rows that exchange over one link

Row = Mapping[str, Any]
ReadRecord = Callable[[Row], Result]  # the whole record of a row; InputError where it has gone since
SyncsByLink = dict[tuple[Any, ...], list[MeasuredSync]]


class DevicePace(NamedTuple):
    """One device without any strategy: an update over b samples takes pass_s + b * sample_s + optimizer_s."""

    pass_s: float  # 0 where one batch alone was measured, or smaller ones are the faster by the sample
    sample_s: float
    optimizer_s: float


def fit_device_pace(bares: Sequence[Row]) -> DevicePace:
    """Of bare rows on one device with one batch or several, the nearest first, whose optimizer counts. InputError says
    what is not known."""
    if not bares:
        raise InputError("no bare run on one device was measured: baseline=bare adds it")
    if bares[0]["optimizer_s"] is None:
        raise InputError(f"the bare run was {NO_PROBES_REASON}")
    points = [(float(row["global_batch"]), _pass_seconds(row)) for row in bares if row["optimizer_s"] is not None]
    batch, worked_s = points[0]
    if worked_s <= 0:
        raise InputError("the optimizer takes all of the bare run's update")
    line = fit_step_time([point for point in points if point[1] > 0])
    optimizer_s = max(0.0, bares[0]["optimizer_s"])  # a difference of two means
    if line is None or line.alpha_s < 0 or line.beta_s <= 0:
        return DevicePace(0.0, worked_s / batch, optimizer_s)
    return DevicePace(line.alpha_s, line.beta_s, optimizer_s)


def collect_step_work(data: Row, bare: Row, pace: DevicePace, read: ReadRecord) -> StepWork:
    """Of the row with all parameters on each device, and of one device. InputError says what is not known."""
    gradient_bytes = bare["gradient_bytes"] if data["gradient_bytes"] is None else data["gradient_bytes"]
    if bare["flops_per_sample"] is None or gradient_bytes is None:
        raise InputError("what a sample costs, or how many parameters there are, is not known of this model")
    messages = len(_message_bytes(data, read)) or 1
    return StepWork(bare["flops_per_sample"], gradient_bytes, messages, pace.optimizer_s, pace.pass_s)


def combine_rates(work: StepWork, pace: DevicePace, link: LinkRate | float | None) -> MachineRates:
    """InputError where no link is known."""
    if link is None:
        raise InputError(f"no link is known: the data-parallel run did not go well, or was {NO_PROBES_REASON}")
    flops_per_s = work.flops_per_sample / pace.sample_s
    if isinstance(link, LinkRate):
        return MachineRates(flops_per_s, link.bytes_per_s, link.latency_s or 0.0)
    return MachineRates(flops_per_s, link)


def _pass_seconds(row: Row) -> float:
    """An update without the optimizer."""
    return float(row["global_batch"] / row[RATE_COLUMN] - max(0.0, row["optimizer_s"]))


def group_syncs_by_link(rows: Iterable[Row], read: ReadRecord) -> SyncsByLink:
    """Of data-parallel rows: those of each link."""
    found: SyncsByLink = {}
    for row in rows:
        if row["gpus"] < 2 or not row["sync_isolated_s"] or not (sizes := _message_bytes(row, read)):
            continue
        one = MeasuredSync(row["gpus"], len(sizes), sum(sizes), row["sync_isolated_s"])
        found.setdefault(link_key(row), []).append(one)
    return found


def find_link_rate(row: Row, links: SyncsByLink, read: ReadRecord) -> LinkRate | float | None:
    """As measured among these; else bytes a second that the hardware's YAML has of a source, for devices of one node or
    of several; None where neither is known."""
    measured = fit_link_rate(links.get(link_key(row), []))
    if measured is not None:
        return measured
    name = "intra_node_bytes_per_s" if row["nodes"] == 1 else "inter_node_bytes_per_s"
    value = (read(row).spec.get("hardware", {}).get("links") or {}).get(name)
    return float(value) if value else None


def link_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in LINK_COLUMNS)


def _message_bytes(row: Row, read: ReadRecord) -> list[int]:
    try:
        return read(row).sync.message_bytes
    except InputError:
        return []


MICRO_BATCHES = "micro_batches"  # key of the strategies' options


def find_stages(result: Result) -> list[ModelStage]:
    """As the run was cut, where its record tells; else a stage a device, cut where the operations of the dearest are
    fewest. Operations are always the network's: what a stage took is measured, and would be no prediction.

    InputError for a network that is not known here or cannot be cut so often.
    """
    network = _build_recorded_network(result)
    recorded = recorded_stages(result)
    return _read_stages(network, recorded, result.scale.global_batch) if recorded else _plan_stages(network, result.scale.gpus)


def recorded_stages(result: Result) -> list[StageRecord]:
    """The stages of the first replica, from the input on; none where the record has no whole chain."""
    found = [stage for rank in result.ranks for stage in rank.stages if stage.replica == 0]
    found.sort(key=lambda stage: stage.index)
    whole = [stage.index for stage in found] == list(range(found[0].stages)) if found else False
    return found if whole else []


def find_micro_batches(result: Result) -> int:
    """As the record tells, else as the strategy's options ask for; where nothing is asked two a stage in a pipeline, as
    most batches allow, and the whole batch at once without."""
    recorded = recorded_stages(result)
    if recorded:
        return recorded[0].micro_batches
    if not result.scale.strategy.startswith("pipeline"):
        return 1
    options: dict[str, Any] = result.spec.get("strategy", {}).get("options") or {}
    asked = options.get(MICRO_BATCHES)
    return asked if isinstance(asked, int) and asked > 0 else 2 * result.scale.gpus


def _build_recorded_network(result: Result) -> Network:
    try:
        model = build_record(ModelSpec, result.spec.get("model", {}), ignore_unknown=True)
    except ValueError as error:
        raise InputError(f"its record does not tell the model: {error}") from error
    if model.torch is not None or model.keras is not None:
        raise InputError("only the framework knows the network of a model of one's own, and where to cut it")
    return networks.build_network(model)


def _plan_stages(network: Network, devices: int) -> list[ModelStage]:
    costs, parameters = node_training_flops(network), node_parameter_bytes(network)
    of_node = {node.name: place for place, node in enumerate(network.nodes)}
    found = []
    for stage in split_into_stages(network, devices, costs):
        places = [of_node[node.name] for node in stage.nodes]
        sent = 0 if stage.index == devices - 1 else activation_bytes(stage)
        share = _divide(sum(costs[place] for place in places), costs)
        found.append(ModelStage(share, sum(parameters[place] for place in places), sent))
    return found


def _read_stages(network: Network, stages: list[StageRecord], global_batch: int) -> list[ModelStage]:
    """InputError where the names are not those of the network's operations."""
    costs = node_training_flops(network)
    of_node = {node.name: place for place, node in enumerate(network.nodes)}
    found = []
    for stage in stages:
        if stage.last not in of_node or stage.first not in of_node:
            raise InputError(
                f"its record tells of a stage from {stage.first} to {stage.last}, which {network.name} lacks"
            )
        worked = sum(costs[of_node[stage.first] : of_node[stage.last] + 1])
        found.append(ModelStage(_divide(worked, costs), stage.parameter_bytes, (stage.sent_bytes or 0) / global_batch))
    return found


def _divide(part: float, costs: list[float]) -> float:
    whole = sum(costs)
    return part / whole if whole else 0.0
