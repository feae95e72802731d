"""Ports of ranks on other hosts."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from scalebench import system_files
from scalebench.launchers import ports


def test_ranks_of_one_host_have_different_ports() -> None:
    hosts = ["a"] * 50 + ["b"] * 50
    found = ports.of_ranks(hosts, "a run")
    assert len(set(zip(hosts, found, strict=True))) == 100
    assert found == ports.of_ranks(hosts, "a run")
    assert found != ports.of_ranks(hosts, "another")


@pytest.mark.parametrize(
    ("told", "low", "high"),
    [
        ("32768\t60999\n", 20_000, 32_767),
        ("1024\t60999\n", 61_000, 65_535),
        ("1024\t65535\n", 20_000, 65_535),  # there is nothing outside
        ("", 20_000, 32_767),
    ],
)
def test_they_lie_outside_what_a_system_gives_away(
    told: str, low: int, high: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_files, "ROOT", tmp_path)
    path = tmp_path / ports.EPHEMERAL
    path.parent.mkdir(parents=True)
    path.write_text(told)
    found = ports.of_ranks(["a"] * 500, "a run")
    assert low <= min(found) < low + (high - low) / 10
    assert high - (high - low) / 10 < max(found) <= high


def test_more_ranks_than_ports_on_different_hosts() -> None:
    hosts = [f"n{k // 100}" for k in range(50_000)]
    found = ports.of_ranks(hosts, "a run")
    assert len(set(zip(hosts, found, strict=True))) == 50_000


def test_a_port_that_is_taken_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    here = socket.gethostname()
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_range", lambda: range(port, port + 3))
        monkeypatch.setattr(random.Random, "shuffle", lambda self, found: None)
        assert port not in ports.of_ranks([here, here], "a run")
        assert ports.of_ranks(["far", "far"], "a run") == [port, port + 1]


def test_ranks_of_one_host_meet_over_its_loopback() -> None:
    assert {address.rpartition(":")[0] for address in ports.addresses(["far", "far"], "")} == {"127.0.0.1"}
    assert [address.rpartition(":")[0] for address in ports.addresses(["a", "b"], "")] == ["a", "b"]
