"""Contract classes from one line each: a strategy, its number of devices, and what differs from the default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from scalebench.testing import FaultContract, StrategyContract


@dataclass(frozen=True)
class Contract:
    """One contract; `name` distinguishes those of one strategy on as many devices, `slow` is for `make test-all`.

    Slow are contracts whose adapter class has a faster one: other names of the class, other options, other numbers of
    devices, and strategies that need GPUs.
    """

    strategy: str
    gpus: int = 2
    name: str = ""
    overrides: tuple[str, ...] = ()
    slow: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()  # further class attributes of the contract


def contract(
    strategy: str, *overrides: str, gpus: int = 2, name: str = "", slow: bool = False, **rest: Any
) -> Contract:
    return Contract(strategy, gpus, name, overrides, slow, tuple(rest.items()))


def contract_classes(
    contracts: Iterable[Contract], base: type[StrategyContract] = StrategyContract, suffix: str = ""
) -> dict[str, type[StrategyContract]]:
    """Return test classes by their name, for the globals of a test module."""
    classes: dict[str, type[StrategyContract]] = {}
    for one in contracts:
        arguments = [*one.strategy.split("_"), *one.name.split()]
        name = (
            "Test"
            + "".join(word.capitalize() for word in arguments)
            + ("" if one.gpus == 2 else str(one.gpus))
            + suffix
        )
        assert name not in classes, name
        attributes = dict(one.attributes)
        attributes |= {"strategy": one.strategy, "gpus": one.gpus, "overrides": (*base.overrides, *one.overrides)}
        classes[name] = _mark(type(name, (base,), attributes), one)
    return classes


def fault_classes(contracts: Iterable[Contract]) -> dict[str, type[FaultContract]]:
    """Return test classes by their name, for the globals of a test module."""
    classes: dict[str, type[FaultContract]] = {}
    for one in contracts:
        name = "Test" + "".join(word.capitalize() for word in one.strategy.split("_")) + "Faults"
        classes[name] = _mark(type(name, (FaultContract,), {"strategy": one.strategy, **dict(one.attributes)}), one)
    return classes


def _mark(test_class: Any, one: Contract) -> Any:
    if one.strategy != "simulated":
        test_class = pytest.mark.real(test_class)
    return pytest.mark.slow(test_class) if one.slow else test_class
