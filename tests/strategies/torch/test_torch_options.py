"""What a strategy's YAML lists under `options` is what its class takes, with the same defaults."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from omegaconf import OmegaConf

from scalebench.strategies import registry
from tests.strategies.torch.conftest import CONF

TORCH = [name for name, target in registry.BUILT_IN_STRATEGIES.items() if ".torch." in target]


@pytest.mark.parametrize("name", TORCH)
def test_options_are_those_of_the_yaml(name: str) -> None:
    listed = OmegaConf.to_container(OmegaConf.load(CONF / "strategy" / f"{name}.yaml"))
    options = asdict(registry.load_strategy(name).Options())
    assert listed["options"] == options
    assert {k: type(v) for k, v in listed["options"].items()} == {k: type(v) for k, v in options.items()}
    assert (listed["name"], listed["framework"]) == (name, "torch")
