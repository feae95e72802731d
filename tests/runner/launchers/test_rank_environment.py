"""The environment of a rank: variables, network interface, ports."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scalebench.core.machine import cpus
from scalebench.core.spec import HardwareSpec
from scalebench.runner.launchers import rank_environment
from scalebench.runner.launchers.rank_environment import (
    THREAD_VARIABLES,
    build_environment,
    find_free_ports,
)
from tests.builders.runs import simulated_spec


def test_each_rank_has_its_own_variables() -> None:
    spec = simulated_spec(gpus=3)
    spec.places[1].threads = 7
    spec.places[2].node, spec.places[2].local_rank = 1, 0
    first, second, third = (build_environment(spec, "an id", rank, ["127.0.0.1:12345"]) for rank in range(3))
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


def test_gloo_uses_the_loopback_only_where_all_ranks_are_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(rank_environment, "find_interface_to", {"10.0.0.1": "eth1", "127.0.0.1": "eth2"}.get)
    local, remote = "127.0.0.1:5000", "10.0.0.1:5001"
    assert build_environment(simulated_spec(gpus=2), "an id", 0, [local, local])["GLOO_SOCKET_IFNAME"] == "lo"
    names = [
        build_environment(simulated_spec(gpus=2), "an id", rank, [local, remote])["GLOO_SOCKET_IFNAME"]
        for rank in range(2)
    ]
    assert names == ["eth1", "eth2"], "each the interface to the other host"


def test_variables_of_the_user_take_precedence() -> None:
    spec = simulated_spec(gpus=2)
    spec.config.hardware.interface = "ib0"
    spec.config.hardware.environment = {"NCCL_SOCKET_IFNAME": "eth5"}
    variables = build_environment(spec, "an id", 0, ["a:1", "b:2"])
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth5")


def test_free_ports_are_all_different() -> None:
    assert len(set(find_free_ports(50))) == 50


HARDWARE = HardwareSpec("cluster")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rank_environment.GLOO_INTERFACE, raising=False)


def test_ranks_of_one_host_need_no_interface() -> None:
    assert rank_environment.interface_variables(HardwareSpec("cluster", interface="ib0"), ["a", "a"], 0) == {}


def test_gloo_gets_the_interface_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    monkeypatch.setattr(rank_environment, "find_interface_to", lambda host: queries.append(host) or f"to_{host}")
    assert rank_environment.interface_variables(HARDWARE, ["a", "a", "b"], 1) == {"GLOO_SOCKET_IFNAME": "to_b"}
    assert rank_environment.interface_variables(HARDWARE, ["a", "a", "b"], 2) == {"GLOO_SOCKET_IFNAME": "to_a"}
    monkeypatch.setenv(rank_environment.GLOO_INTERFACE, "eth7")
    assert rank_environment.interface_variables(HARDWARE, ["a", "b"], 0) == {}, "the shell sets one"
    assert queries == ["b", "a"]


def test_a_configured_interface_applies_to_all_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rank_environment.GLOO_INTERFACE, "eth7")
    named = rank_environment.interface_variables(HardwareSpec("cluster", interface="ib0"), ["a", "b"], 0)
    assert named == {
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "HOROVOD_GLOO_IFACE": "ib0",
        "OMPI_MCA_btl_tcp_if_include": "ib0",
    }


def test_this_host_is_reached_over_its_loopback() -> None:
    assert rank_environment.find_interface_to("127.0.0.1") == "lo"
    assert rank_environment.find_interface_to("127.0.0.300") is None


def test_addresses_of_version_6_carry_their_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    local = [SimpleNamespace(address="127.0.0.1%eth3")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"other": [SimpleNamespace(address="10.0.0.1")], "eth3": local})
    assert rank_environment.find_interface_to("127.0.0.1") == "eth3"


def test_ranks_of_one_host_have_different_ports() -> None:
    hosts = ["a"] * 50 + ["b"] * 50
    ports = rank_environment.choose_likely_free_ports(hosts, "a run")
    assert len(set(zip(hosts, ports, strict=True))) == 100
    assert ports == rank_environment.choose_likely_free_ports(hosts, "a run")
    assert ports != rank_environment.choose_likely_free_ports(hosts, "another")


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("32768\t60999\n", 20_000, 32_767),
        ("1024\t60999\n", 61_000, 65_535),
        ("1024\t65535\n", 20_000, 65_535),  # no port is outside
        ("", 20_000, 32_767),
    ],
)
def test_ports_are_outside_the_ephemeral_range(
    text: str, low: int, high: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "SYSTEM_ROOT", tmp_path)
    path = tmp_path / rank_environment.EPHEMERAL_PORTS
    path.parent.mkdir(parents=True)
    path.write_text(text)
    ports = rank_environment.choose_likely_free_ports(["a"] * 500, "a run")
    assert low <= min(ports) < low + (high - low) / 10
    assert high - (high - low) / 10 < max(ports) <= high


def test_there_may_be_more_ranks_than_ports() -> None:
    hosts = [f"n{k // 100}" for k in range(50_000)]
    ports = rank_environment.choose_likely_free_ports(hosts, "a run")
    assert len(set(zip(hosts, ports, strict=True))) == 50_000


def test_a_port_in_use_on_this_host_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    local = socket.gethostname()
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(rank_environment, "_port_range", lambda: range(port, port + 3))
        monkeypatch.setattr(random.Random, "shuffle", lambda self, ports: None)
        assert port not in rank_environment.choose_likely_free_ports([local, local], "a run")
        assert rank_environment.choose_likely_free_ports(["far", "far"], "a run") == [port, port + 1]


def test_ranks_of_one_host_use_its_loopback() -> None:
    assert {address.rpartition(":")[0] for address in rank_environment.assign_rank_addresses(["far", "far"], "")} == {
        "127.0.0.1"
    }
    assert [address.rpartition(":")[0] for address in rank_environment.assign_rank_addresses(["a", "b"], "")] == [
        "a",
        "b",
    ]
