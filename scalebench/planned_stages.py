"""The stages that a model-parallel run has, or would have: from its record, else from its network. Layer 1."""

from __future__ import annotations

from typing import Any

from scalebench.parallel_choice import Stage
from scalebench.records import from_dict
from scalebench.results import Result, StageRecord
from scalebench.spec import InputError, ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from scalebench.workloads.partition import (
    activation_bytes,
    node_parameter_bytes,
    node_training_flops,
    split_into_stages,
)

MICRO_BATCHES = "micro_batches"  # key of the strategies' options


def stages_of(result: Result) -> list[Stage]:
    """As the run was cut, where its record tells; else a stage a device, cut where the operations of the dearest are
    fewest. Operations are always the network's: what a stage took is measured, and would be no prediction.

    InputError for a network that is not known here or cannot be cut so often.
    """
    network = _network(result)
    recorded = chain(result)
    return _recorded(network, recorded, result.scale.global_batch) if recorded else _planned(network, result.scale.gpus)


def chain(result: Result) -> list[StageRecord]:
    """The stages of the first replica, from the input on; none where the record has no whole chain."""
    found = [stage for rank in result.ranks for stage in rank.stages if stage.replica == 0]
    found.sort(key=lambda stage: stage.index)
    whole = [stage.index for stage in found] == list(range(found[0].stages)) if found else False
    return found if whole else []


def micro_batches_of(result: Result) -> int:
    """As the record tells, else as the strategy's options ask for; where nothing is asked two a stage in a pipeline, as
    most batches allow, and the whole batch at once without."""
    recorded = chain(result)
    if recorded:
        return recorded[0].micro_batches
    if not result.scale.strategy.startswith("pipeline"):
        return 1
    options: dict[str, Any] = result.spec.get("strategy", {}).get("options") or {}
    asked = options.get(MICRO_BATCHES)
    return asked if isinstance(asked, int) and asked > 0 else 2 * result.scale.gpus


def _network(result: Result) -> Network:
    try:
        model = from_dict(ModelSpec, result.spec.get("model", {}), ignore_unknown=True)
    except ValueError as error:
        raise InputError(f"its record does not tell the model: {error}") from error
    if model.torch is not None or model.keras is not None:
        raise InputError("only the framework knows the network of a model of one's own, and where to cut it")
    return networks.build_network(model)


def _planned(network: Network, devices: int) -> list[Stage]:
    costs, parameters = node_training_flops(network), node_parameter_bytes(network)
    of_node = {node.name: place for place, node in enumerate(network.nodes)}
    found = []
    for stage in split_into_stages(network, devices, costs):
        places = [of_node[node.name] for node in stage.nodes]
        sent = 0 if stage.index == devices - 1 else activation_bytes(stage)
        share = _share(sum(costs[place] for place in places), costs)
        found.append(Stage(share, sum(parameters[place] for place in places), sent))
    return found


def _recorded(network: Network, stages: list[StageRecord], global_batch: int) -> list[Stage]:
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
        found.append(Stage(_share(worked, costs), stage.parameter_bytes, (stage.sent_bytes or 0) / global_batch))
    return found


def _share(part: float, costs: list[float]) -> float:
    whole = sum(costs)
    return part / whole if whole else 0.0
