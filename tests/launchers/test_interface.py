"""The network interface towards other hosts."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from scalebench.launchers import interface
from scalebench.spec import HardwareSpec

HARDWARE = HardwareSpec("cluster")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interface.GLOO, raising=False)


def test_ranks_of_one_host_need_none() -> None:
    assert interface.variables(HardwareSpec("cluster", interface="ib0"), ["a", "a"], 0) == {}


def test_the_one_that_leads_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(interface, "towards", lambda host: asked.append(host) or f"to_{host}")
    assert interface.variables(HARDWARE, ["a", "a", "b"], 1) == {"GLOO_SOCKET_IFNAME": "to_b"}
    assert interface.variables(HARDWARE, ["a", "a", "b"], 2) == {"GLOO_SOCKET_IFNAME": "to_a"}
    monkeypatch.setenv(interface.GLOO, "eth7")
    assert interface.variables(HARDWARE, ["a", "b"], 0) == {}, "the shell says which"
    assert asked == ["b", "a"]


def test_none_where_it_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "towards", lambda host: None)
    assert interface.variables(HARDWARE, ["a", "b"], 0) == {}


def test_one_that_is_named_is_for_all_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interface.GLOO, "eth7")
    named = interface.variables(HardwareSpec("cluster", interface="ib0"), ["a", "b"], 0)
    assert named == {
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "HOROVOD_GLOO_IFACE": "ib0",
        "OMPI_MCA_btl_tcp_if_include": "ib0",
    }


def test_this_host_is_reached_over_its_loopback() -> None:
    assert interface.towards("127.0.0.1") == "lo"
    assert interface.towards("127.0.0.300") is None


def test_addresses_of_version_6_carry_their_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [SimpleNamespace(address="127.0.0.1%eth3")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"other": [SimpleNamespace(address="10.0.0.1")], "eth3": own})
    assert interface.towards("127.0.0.1") == "eth3"
