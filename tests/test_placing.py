"""Which process stands on which node, drives which devices and has which cores."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench import machine, placing, resolve
from scalebench.spec import HardwareSpec
from tests.configs import ALPHA, config, line, of, pretend


@pytest.fixture
def machine_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    return functools.partial(pretend, monkeypatch)


def test_processes_are_pinned_in_sequence(machine_with: Any) -> None:
    machine_with(0, cpus=8)
    spec = of(gpus=2, hardware=HardwareSpec("local", devices="cpu"))
    assert [p.cpus for p in spec.places] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [(p.rank, p.local_rank, p.node, p.devices, p.threads) for p in spec.places] == [
        (0, 0, 0, [0], 4),
        (1, 1, 0, [1], 4),
    ]
    assert spec.flags == []


def test_cores_are_those_that_this_process_may_use(machine_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: [3, 5])
    spec = of(gpus=2, hardware=HardwareSpec("local", devices="cpu"))
    assert [p.cpus for p in spec.places] == [[3], [5]]


@pytest.mark.parametrize(("gpus", "flags"), [(2, []), (3, ["oversubscribed"]), (8, ["oversubscribed"])])
def test_more_workers_than_cores_are_allowed_and_flagged(machine_with: Any, gpus: int, flags: list[str]) -> None:
    machine_with(0, cpus=2)
    spec = of(gpus=gpus, hardware=HardwareSpec("local", devices="cpu"))
    assert (spec.flags, spec.unsupported, spec.nodes) == (flags, None, 1)
    assert [p.cpus for p in spec.places] == [[rank % 2] for rank in range(gpus)]


def test_one_process_for_all_devices(machine_with: Any) -> None:
    machine_with(0, cpus=8)
    made = config(gpus=3, hardware=HardwareSpec("local", devices="cpu", cpus_per_device=2))
    made.strategy.processes = "one_for_all"
    (only,) = resolve.resolve(made).places
    assert (only.devices, only.cpus, only.threads) == ([0, 1, 2], list(range(6)), 2)


ROLES = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}


def test_roles_stand_before_the_workers_and_take_no_device(machine_with: Any) -> None:
    machine_with(0, cpus=8)
    made = config(gpus=2, hardware=HardwareSpec("local", devices="cpu", cpus_per_device=2))
    made.strategy.processes = {"roles": {**ROLES["roles"], "ps": 2}}
    spec = resolve.resolve(made)
    assert [(p.rank, p.local_rank, p.role, p.devices, p.cpus) for p in spec.places] == [
        (0, 0, "chief", [], []),
        (1, 1, "ps", [], []),
        (2, 2, "ps", [], []),
        (3, 3, "worker", [0], [0, 1]),
        (4, 4, "worker", [1], [2, 3]),
    ]
    assert (spec.gpus, spec.processes, spec.flags) == (2, 5, [])
    assert spec.services == {1: "ps", 2: "ps", 3: "worker", 4: "worker"}
    assert of(gpus=2).services == {}


def test_roles_over_several_nodes() -> None:
    spec = of(gpus=10, hardware=ALPHA, strategy__processes=ROLES)
    workers = [p for p in spec.places if p.role == "worker"]
    assert [(p.node, p.devices) for p in workers] == [(0, [k]) for k in range(8)] + [(1, [0]), (1, [1])]
    for node in (0, 1):
        local_ranks = [p.local_rank for p in spec.places if p.node == node]
        assert local_ranks == list(range(len(local_ranks)))


def test_processes_without_a_core_of_their_own_are_flagged(machine_with: Any) -> None:
    machine_with(0, cpus=3)
    hardware = HardwareSpec("local", devices="cpu")
    assert of(gpus=2, hardware=hardware).flags == []
    assert of(gpus=2, hardware=hardware, strategy__processes=ROLES).flags == ["oversubscribed"]


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        ({"chief": 1, "worker": "gpus"}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 2, "ps": 1, "worker": "gpus"}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 1, "ps": 1, "worker": 2}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 1, "ps": 1, "worker": "gpus", "boss": 1}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 1, "ps": 0, "worker": "gpus"}, "strategy.processes.roles.ps=0 should be a count, at least 1"),
        ({"chief": 1, "ps": "x", "worker": "gpus"}, "strategy.processes.roles.ps=x should be a count, at least 1"),
        (None, "strategy.processes={'roles': None} should be one_per_device, one_for_all or roles"),
    ],
)
def test_roles_that_make_no_sense(roles: Any, told: str) -> None:
    assert told in line(config(strategy__processes={"roles": roles}))


@pytest.mark.parametrize(("gpus", "per_node"), [(1, [1]), (8, [8]), (10, [8, 2]), (24, [8, 8, 8])])
def test_a_second_node_only_when_the_first_is_full(gpus: int, per_node: list[int]) -> None:
    spec = of(gpus=gpus, hardware=ALPHA)
    assert spec.nodes == len(per_node)
    assert [sum(p.node == node for p in spec.places) for node in range(spec.nodes)] == per_node
    assert [p.local_rank for p in spec.places] == [k for count in per_node for k in range(count)]
    assert {p.threads for p in spec.places} == {6} and all(p.cpus == [] for p in spec.places)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 16))
def test_no_two_processes_share_a_core_while_there_are_enough(gpus: int, threads: int, cores: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cpus", lambda: list(range(cores)))
        hardware = HardwareSpec("local", devices="cpu", gpus_per_node=2, cpus_per_node=cores, cpus_per_device=threads)
        places = placing.place(config(hardware=hardware), gpus)
        taken = [cpu for p in places for cpu in p.cpus]
        assert set(taken) <= set(range(cores)) and all(p.cpus for p in places)
        enough = gpus * threads <= cores
        assert (len(taken) == len(set(taken)) == gpus * threads) if enough else placing.oversubscribed(hardware, gpus)


def test_named_hosts_are_filled_in_their_order() -> None:
    """Whatever gpus_per_node says: their slots count."""
    spec = of(gpus=5, hardware__hosts=["a:2", "b", "c:4"], strategy__launcher="mpi")
    assert [(p.node, p.local_rank, p.devices) for p in spec.places] == [
        (0, 0, [0]),
        (0, 1, [1]),
        (1, 0, [0]),
        (2, 0, [0]),
        (2, 1, [1]),
    ]
    assert spec.nodes == 3


def test_hosts_that_cannot_be_read() -> None:
    assert line(config(hardware__hosts=["a:b:c"])) == "hardware.hosts: 'a:b:c' should be NAME:SLOTS, such as node1:8"
