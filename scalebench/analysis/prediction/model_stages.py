"""The stages of a model that is cut into parts for several devices, from a run's record, else as they would be cut."""

from __future__ import annotations

from dataclasses import dataclass

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

MICRO_BATCHES = "micro_batches"  # key of the strategies' options


@dataclass(frozen=True)
class ModelStage:
    """A part of a model that one device holds."""

    flops: float  # of training on a sample
    parameter_bytes: float
    sent_bytes: float  # activations of one sample that are sent to the next stage; 0 for the last one


def find_stages(result: Result) -> list[ModelStage]:
    """Return the stages in the record, else one stage per device that minimizes the operations of the largest.

    Operations are always those of the network: the measured seconds of a stage would be no prediction. InputError for
    a network that is unknown here or cannot be split into so many stages.
    """
    network = _build_recorded_network(result)
    if not (recorded := recorded_stages(result)):
        return _plan_stages(network, result.scale.gpus)
    replica_batch = result.scale.samples_per_step * len(recorded) / result.scale.gpus
    return _read_stages(network, recorded, replica_batch)


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
    strategy = result.spec.get("strategy", {})
    if strategy.get("sync") != "pipeline":
        return 1
    number = (strategy.get("options") or {}).get(MICRO_BATCHES)
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
        parts.append(ModelStage(sum(costs[i] for i in indices), sum(parameters[i] for i in indices), sent))
    return parts


def _read_stages(network: Network, stages: list[StageRecord], replica_batch: float) -> list[ModelStage]:
    """Return the recorded stages; InputError if their names are not those of the network's operations."""
    costs = node_training_flops(network)
    index_of = {node.name: index for index, node in enumerate(network.nodes)}
    parts = []
    for stage in stages:
        if stage.last not in index_of or stage.first not in index_of:
            raise InputError(f"its record has a stage from {stage.first} to {stage.last}, which {network.name} lacks")
        flops = sum(costs[index_of[stage.first] : index_of[stage.last] + 1])
        parts.append(ModelStage(flops, stage.parameter_bytes, (stage.sent_bytes or 0) / replica_batch))
    return parts
