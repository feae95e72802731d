"""Cores of ranks on a remote node, which the node itself assigns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scalebench.config import placement
from scalebench.core.machine import machine
from scalebench.core.machine.cpus import NumaNode
from scalebench.core.spec import HardwareSpec, RankPlacement, RunSpec
from tests.builders.runs import simulated_spec


def spec_of(nodes: Sequence[Sequence[int]], threads: int = 1, **changes: object) -> RunSpec:
    """Return a spec with a rank for each device of each node."""
    spec = simulated_spec(gpus=sum(map(len, nodes)), size=1000)
    fields = {"devices": "cpu", "cpus_per_device": threads, "this_machine": False, **changes}
    spec.config.hardware = HardwareSpec("cluster", **fields)  # type: ignore[arg-type]
    placed = [(node, devices, k) for node, devices in enumerate(nodes) for k in range(len(devices))]
    spec.places = [
        RankPlacement(rank, k, node, [devices[k]], [], threads) for rank, (node, devices, k) in enumerate(placed)
    ]
    return spec


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Four cores, and not the first ones, as in a job with a part of the node."""
    results = [4, 5, 6, 7]
    monkeypatch.setattr(machine, "usable_cpus", lambda: results)
    return results


def test_each_node_assigns_its_own_cores(cores: list[int]) -> None:
    assert placement.assign_cores_on_this_node(spec_of([[0, 1], [0, 1]], threads=2)) == [[4, 5], [6, 7], [4, 5], [6, 7]]


def test_ranks_have_their_own_cores_while_there_are_enough(cores: list[int]) -> None:
    assert placement.assign_cores_on_this_node(spec_of([[0, 4]])) == [[4], [5]], (
        "numbers with gaps, and fewer cores than the full node has"
    )
    assert placement.assign_cores_on_this_node(spec_of([[1, 2]])) == [[5], [6]]
    assert placement.assign_cores_on_this_node(spec_of([[0, 1, 2, 3, 4, 5]])) == [[4], [5], [6], [7], [4], [5]]


def test_gpus_keep_their_numbers(cores: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [0, 0, 1, 1])
    nodes = [NumaNode(0, [0, 1, 4, 5], None, {}), NumaNode(1, [2, 3, 6, 7], None, {})]
    monkeypatch.setattr(machine, "numa_nodes", lambda: nodes)
    assert placement.assign_cores_on_this_node(spec_of([[0, 2]], devices="cuda")) == [[4], [6]]


def test_one_process_has_the_cores_of_all_its_devices(cores: list[int]) -> None:
    spec = spec_of([[0]])
    spec.places[0].devices = [0, 1, 2]
    assert placement.assign_cores_on_this_node(spec) == [[4, 5, 6]]


def test_a_rank_without_a_device_is_not_pinned(cores: list[int]) -> None:
    spec = spec_of([[0, 1]])
    spec.places[0].devices = []
    assert placement.assign_cores_on_this_node(spec) == [[], [5]]


def test_the_variable_with_the_cores_of_a_rank(cores: list[int]) -> None:
    spec = spec_of([[0, 1]], threads=2)
    message = placement.make_cpus_variable(spec, 1)
    assert message == {"SCALEBENCH_CPUS": "6,7"}
    assert placement.read_cpus_variable(message) == [6, 7]
    assert placement.read_cpus_variable({}) == []
    spec.places[1].cpus = [3]
    assert placement.make_cpus_variable(spec, 1) == {}
    assert placement.make_cpus_variable(spec_of([[0, 1]], bind="none"), 1) == {}
    assert placement.make_cpus_variable(spec_of([[0, 1]], this_machine=True), 1) == {}, (
        "its places already have the cores"
    )
