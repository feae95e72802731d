"""Costs that are measured: of each part that a network can be cut into, every node once."""

from __future__ import annotations

import pytest
import torch

from scalebench.strategies.torch.pipeline.stage import cut_into_segments, measure_node_costs
from scalebench.strategies.torch.precision import Precision
from scalebench.workloads import networks
from scalebench.workloads.partition import split_into_stages
from tests.strategies.torch.conftest import spec_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["materials_cnn", "resnet20_cifar10"])
def test_segments_are_the_whole_network(model: str) -> None:
    network = networks.build_network(spec_of("model_parallel", model=model).config.model)
    found = list(cut_into_segments(network))
    assert [node for segment in found for node in segment.nodes] == network.nodes[1:]
    assert [segment.source for segment in found[1:]] == [segment.output for segment in found[:-1]]


def test_seconds_balance_the_stages() -> None:
    """Twice as many samples cost more, and the partitioner takes what is measured."""
    config = spec_of("model_parallel").config
    network = networks.build_network(config.model)
    few, many = (
        measure_node_costs(network, config, samples, CPU, Precision("float32", CPU), lambda: None)
        for samples in (2, 256)
    )
    ends = {segment.output.name for segment in cut_into_segments(network)}
    for costs in (few, many):
        assert {node.name for node, cost in zip(network.nodes, costs, strict=True) if cost > 0} == ends
    assert sum(many) > sum(few)
    assert len(split_into_stages(network, 3, many)) == 3
