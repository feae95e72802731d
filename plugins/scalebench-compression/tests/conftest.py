"""Rank 0 of a strategy inside the test process: one rank, on the CPU, over Gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy

Make = Callable[..., Any]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """made(name, *words) -> rank 0 of that strategy, not set up yet; closed after the test."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "1"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_ports(1)[0]), "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in (variables | where).items():
        monkeypatch.setenv(name, value)
    strategies: list[Strategy] = []

    def make(name: str, *words: str) -> Strategy:
        spec = resolve(compose_config([f"strategy={name}", "gpus=1", "hardware=cpu", *words]))
        assert spec.unsupported is None, spec.unsupported
        strategies.append(registry.load_strategy(name)(spec, 0))
        return strategies[-1]

    yield make
    for one in strategies:
        one.close()
