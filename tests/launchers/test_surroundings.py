"""What a rank finds when it starts."""

from __future__ import annotations

import os
import socket

import pytest

from scalebench.launchers import interface
from scalebench.launchers.surroundings import THREAD_VARIABLES, environment, free_port, free_ports
from tests.helpers import simulated_spec


def test_each_rank_has_its_own_variables() -> None:
    spec = simulated_spec(gpus=3)
    spec.places[1].threads = 7
    spec.places[2].node, spec.places[2].local_rank = 1, 0
    first, second, third = (environment(spec, "an id", rank, ["127.0.0.1:12345"]) for rank in range(3))
    assert (first["RANK"], second["RANK"], third["RANK"]) == ("0", "1", "2")
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"], third["LOCAL_RANK"]) == ("0", "1", "0")
    assert (first["LOCAL_WORLD_SIZE"], third["LOCAL_WORLD_SIZE"], third["NODE_RANK"]) == ("2", "1", "1")
    for variables in (first, second, third):
        assert (variables["WORLD_SIZE"], variables["MASTER_ADDR"], variables["MASTER_PORT"]) == (
            "3",
            "127.0.0.1",
            "12345",
        )
        assert variables["SCALEBENCH_RUN_ID"] == "an id"
        assert variables["SCALEBENCH_PARENT_PID"] == str(os.getpid())
        assert variables["PATH"] == os.environ["PATH"], "what is set here reaches the workers"
    for name in THREAD_VARIABLES:
        assert (first[name], second[name]) == (str(spec.places[0].threads), "7")


def test_each_rank_knows_the_addresses_of_all() -> None:
    addresses = ["10.0.0.1:5000", "10.0.0.1:5001"]
    variables = environment(simulated_spec(gpus=2), "an id", 1, addresses)
    assert variables["SCALEBENCH_ADDRESSES"] == "10.0.0.1:5000,10.0.0.1:5001"
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "5000")


def test_gloo_takes_the_loopback_where_all_ranks_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(interface, "towards", {"10.0.0.1": "eth1", "127.0.0.1": "eth2"}.get)
    here, there = "127.0.0.1:5000", "10.0.0.1:5001"
    assert environment(simulated_spec(gpus=2), "an id", 0, [here, here])["GLOO_SOCKET_IFNAME"] == "lo"
    names = [
        environment(simulated_spec(gpus=2), "an id", rank, [here, there])["GLOO_SOCKET_IFNAME"] for rank in range(2)
    ]
    assert names == ["eth1", "eth2"], "each the one towards the other"


def test_what_the_user_sets_for_the_processes_wins() -> None:
    spec = simulated_spec(gpus=2)
    spec.config.hardware.interface = "ib0"
    spec.config.hardware.environment = {"NCCL_SOCKET_IFNAME": "eth5"}
    found = environment(spec, "an id", 0, ["a:1", "b:2"])
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth5")


def test_a_free_port_can_be_bound() -> None:
    ports = [free_port() for _ in range(20)]
    assert all(1024 <= port < 65536 for port in ports)
    with socket.socket() as one:
        one.bind(("127.0.0.1", ports[-1]))


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(50))) == 50
