"""The YAML of each built-in strategy, and that each strategy and each adapter class has its contract."""

from __future__ import annotations

from collections import defaultdict
from types import ModuleType

import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.strategies import registry
from scalebench.testing.strategy_contract import YamlContract
from tests.strategies.contracts import test_contract_horovod, test_contract_tensorflow, test_contract_torch


@pytest.mark.parametrize("name", registry.BUILT_IN_STRATEGIES)
def test_the_yaml_of_a_strategy_is_complete(name: str) -> None:
    contract = type("Stated", (YamlContract,), {"strategy": name})()
    contract.test_yaml_has_a_description()
    contract.test_yaml_has_requirements()
    contract.test_yaml_declares_exactness()


def contracts_in(module: ModuleType) -> list[type]:
    return [one for name, one in vars(module).items() if name.startswith("Test")]


def test_each_strategy_has_a_contract_and_each_adapter_class_one_that_is_not_slow() -> None:
    modules = (test_contract_torch, test_contract_tensorflow, test_contract_horovod)
    contracts = [one for module in modules for one in contracts_in(module)]
    assert {one.strategy for one in contracts} == set(registry.BUILT_IN_STRATEGIES)  # type: ignore[attr-defined]
    quick: dict[str | None, int] = defaultdict(int)
    for one in contracts:
        marks = {mark.name for mark in one.pytestmark} if hasattr(one, "pytestmark") else set()
        quick[registry.find_strategy(one.strategy).target] += "slow" not in marks  # type: ignore[attr-defined]
    # One process with several GPUs: there is nothing to run without them.
    assert {target for target, count in quick.items() if not count} == {registry.find_strategy("data_parallel").target}


def test_names_of_one_adapter_class_have_the_same_options() -> None:
    """So that the contract of one of them holds for all, but for the values of the options."""
    options: dict[str | None, dict[str, set[str]]] = defaultdict(dict)
    for name in registry.BUILT_IN_STRATEGIES:
        stated = type("Stated", (YamlContract,), {"strategy": name}).stated()
        options[registry.find_strategy(name).target][name] = set(stated.options)
    for names in options.values():
        assert len({frozenset(keys) for keys in names.values()}) == 1, names


@pytest.mark.parametrize(("name", "flagged"), [("parameter_server", True), ("simulated", False)])
def test_rows_of_approximate_strategies_are_flagged(name: str, flagged: bool) -> None:
    spec = resolve(compose_config([f"strategy={name}", "gpus=1"]))
    assert ("approximate" in spec.flags) == flagged
