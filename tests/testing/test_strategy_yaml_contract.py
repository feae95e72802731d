"""What the YAML of each of our strategies says of it, and that each has its contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.strategies import registry
from scalebench.testing.strategy_contract import StatedContract

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", registry.BUILT_IN_STRATEGIES)
def test_yaml(name: str) -> None:
    contract = type("Stated", (StatedContract,), {"strategy": name})()
    contract.test_yaml_says_what_it_is()
    contract.test_yaml_says_what_it_needs()
    contract.test_yaml_says_whether_it_is_exact()


def test_every_strategy_of_ours_is_under_contract() -> None:
    text = "\n".join(path.read_text() for path in (TESTS / "strategies" / "contracts").glob("test_contract*.py"))
    bodies = re.findall(r"^class \w+\(StrategyContract\):\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    asked = {name for body in bodies for name in re.findall(r'^    strategy = "(\w+)"', body, re.MULTILINE)}
    assert asked == set(registry.BUILT_IN_STRATEGIES)


@pytest.mark.parametrize(("name", "flagged"), [("parameter_server", True), ("simulated", False)])
def test_rows_of_inexact_strategies_say_so(name: str, flagged: bool) -> None:
    spec = resolve(compose_config([f"strategy={name}", "gpus=1"]))
    assert ("approximate" in spec.flags) == flagged
