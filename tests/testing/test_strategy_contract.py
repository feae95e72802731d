"""StrategyContract: each built-in strategy and adapter class has one, and each thing that it asks fails for a strategy
that does not have it: a contract that cannot fail says nothing."""

import re
import signal
from collections import defaultdict

import numpy as np
import pytest

from scalebench.cli.commands.check import FAILS, HOLDS, ContractCase, run_contracts
from scalebench.core.config_files import read_strategy_config, strategy_option_defaults
from scalebench.strategies import registry
from scalebench.testing import FaultContract
from scalebench.testing.fault_contract import EXPECTED_OUTCOMES
from scalebench.testing.strategy_contract import StrategyContract, YamlContract, describe_updates
from tests.builders.plugins import dists as dists
from tests.builders.plugins import strategy_yaml
from tests.strategies.contracts import test_contract_strategies, test_contract_tensorflow

slow = pytest.mark.slow
HEAD = """
import dataclasses
import numpy as np
from scalebench.strategies.simulated import Simulated
from scalebench.plugin_api import LossPart, NotMeasured

class Mine(Simulated):
"""
# Question -> the method that gets it wrong.
FAULTS = {
    "samples of each step": "def step(self, batch): return LossPart(1.0, 3)",
    "losses equal the baselines": "def step(self, batch): return LossPart(2.0 * batch.samples, batch.samples)",
    "every sample once per epoch": "def shard(self): return 0, 2",
    "uneven parts": "def step(self, batch): return LossPart(1.0, 3)",
    "broadcast": "def broadcast(self, value): return super().broadcast(value) + self.place.rank",
    "evaluation": "def evaluate(self, source): return {'mse': float(self.place.rank)}",
    "backend is the requested one": "def backend_used(self): return 'pigeons'",
    "parts of a step": "def partial_step(self, batch, until): raise NotMeasured('no')",
    "sync off synchronizes nothing": "def set_gradient_sync(self, on): raise NotMeasured('no')",
    "peak memory": "def peak_memory_bytes(self): return [0]",
    "parameter count": "def num_params(self): return 7",
    "closes twice": "def close(self): self.closed = self.closed + [1] if hasattr(self, 'closed') else 1",
    "all ranks start with the same weights": "def parameters(self): return {'w': np.array([float(self.place.rank)])}",
    "training makes progress": "def parameters(self): return {'w': np.ones(2)}",
}
YAMLS = {
    "yaml has a description": {"description": " "},
    "yaml has requirements": {"devices": ["tpu"]},
    "yaml declares exactness": {"tolerance": 0.5},
    "yaml has valid options": {"at_least": {"steps": 0}},
}


def answers(folder, **settings):
    folder.mkdir()
    actual = run_contracts([ContractCase("StrategyContract", {"strategy": "mine", **settings})], folder)
    return {result.test: result for result in actual}


class TestSimulatedFaults(FaultContract):
    """As authors of plugins have it; tests/faults has the faults of the built-in strategies."""

    strategy = "simulated"
    hang_s = 6.0  # for a busy machine

    @pytest.mark.parametrize(
        "fault", [pytest.param(each, marks=() if each in ("kill", "stop") else slow) for each in EXPECTED_OUTCOMES]
    )
    def test_a_failing_rank_ends_the_run(self, fault, tmp_path):
        super().test_a_failing_rank_ends_the_run(fault, tmp_path)

    @pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=slow)])
    def test_no_worker_survives_the_parent(self, sign, tmp_path):
        super().test_no_worker_survives_the_parent(sign, tmp_path)


@slow
@pytest.mark.parametrize("question", FAULTS)
def test_a_faulty_class_fails(question, dists, tmp_path):
    dists.strategy(code=f"{HEAD}    {FAULTS[question]}\n", yaml=strategy_yaml("mine", baseline="simulated"))
    answer = answers(tmp_path / "asked")[question]
    assert (answer.verdict, bool(answer.reason), bool(answer.detail)) == (FAILS, True, True)


@slow
@pytest.mark.parametrize("question", YAMLS)
def test_a_faulty_yaml_fails(question, dists, tmp_path):
    """All that is asked of a lax one otherwise still holds, as its class is sound."""
    dists.strategy(yaml=strategy_yaml("mine", baseline="simulated", **YAMLS[question]))
    actual = answers(tmp_path / "asked")
    assert actual[question].verdict == FAILS
    if question == "yaml declares exactness":
        assert [name for name, answer in actual.items() if answer.verdict == FAILS] == [question]
        assert "say in `approximate` why its steps differ" in actual[question].reason
        assert actual["losses equal the baselines"].verdict == HOLDS


@slow
def test_approximate_steps_have_their_own_tolerance(dists, tmp_path):
    off = "    def step(self, batch):\n        part = super().step(batch)\n"
    off += "        return LossPart(part.loss_sum * 1.01, part.samples)\n"
    reported = {"baseline": "simulated", "approximate": "its losses are a hundredth more"}
    dists.strategy(code=HEAD + off, yaml=strategy_yaml("mine", **reported, tolerance=0.02))
    assert answers(tmp_path / "wide")["losses equal the baselines"].verdict == HOLDS
    assert answers(tmp_path / "narrow", loss_rtol=0.005)["losses equal the baselines"].verdict == FAILS


def test_the_yaml_of_a_strategy_is_complete():
    """Names of one adapter class have the same options, so that the contract of one of them holds for all, but for the
    values of the options."""
    options = defaultdict(set)
    for name in registry.built_in_strategies():
        contract = type(name, (YamlContract,), {"strategy": name})()
        contract.test_yaml_has_a_description()
        contract.test_yaml_has_requirements()
        contract.test_yaml_declares_exactness()
        contract.test_yaml_has_valid_options()
        stated = contract.stated()
        if name.endswith(("_nccl", "_gloo")):
            assert stated.backend == name.rpartition("_")[2]
        assert stated.backend != "nccl" or stated.devices == ["cuda"]
        options[stated.adapter].add(frozenset(stated.options))
    assert {target for target, kinds in options.items() if len(kinds) > 1} == set()


def test_each_strategy_has_a_contract_and_each_adapter_class_one_that_is_not_slow():
    files = vars(test_contract_strategies) | vars(test_contract_tensorflow)
    named = [one for name, one in files.items() if name.startswith("Test")]
    contracts = [one for one in named if issubclass(one, StrategyContract)]
    assert {one.strategy for one in contracts} == set(registry.built_in_strategies()) - {"script"}  # it has no step
    quick = defaultdict(int)
    for one in contracts:
        marks = {mark.name for mark in one.pytestmark} if hasattr(one, "pytestmark") else set()
        quick[one.stated().adapter] += "slow" not in marks
    # One process with several GPUs: there is nothing to run without them.
    without_gpus = read_strategy_config("data_parallel")["adapter"]
    assert {target for target, count in quick.items() if not count} == {without_gpus}


@pytest.mark.parametrize(("factor", "across", "text"), [
    (2.0, 0.0, "updates are 2.00 times the baseline's: summed and not averaged?"),
    (0.5, 0.03, "updates are 0.50 times the baseline's: averaged twice?"),
    (3.1, 0.0, "updates are 3.10 times the baseline's"),
    (1.0, 0.02, "updates of one step of SGD are off the baseline's by 2.00%, not by a factor: of other samples?"),
    (1.0, 0.0, "updates of one step of SGD are the baseline's: later steps, or its optimizer, differ"),
    (0.0, 0.0, "updates nothing in one step of SGD"),
])  # fmt: skip
def test_updates_that_differ_are_described(factor, across, text):
    actual = {"w": np.array([factor, 0.0]), "b": np.array([factor * across])}
    assert describe_updates(actual, {"w": np.array([1.0, 0.0]), "b": np.zeros(1)}, 2) == text


USER_LOSSES = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(600, 2))
def total(outputs, targets):
    return ((outputs - targets) ** 2).sum()
"""


@slow
def test_a_loss_that_is_no_mean_blames_no_strategy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "losses.py").write_text(USER_LOSSES)
    overrides = ("model=custom", "model.torch=losses:build", "model.loss=losses:total")
    actual = answers(tmp_path / "asked", strategy="ddp_gloo", overrides=overrides)
    assert not [name for name, answer in actual.items() if answer.verdict == FAILS]
    pattern = (
        r"model\.loss=losses:total is not a mean over samples: \S+ in batches of 31, \S+ in batches of 16, so that"
    )
    assert re.match(pattern, actual["losses equal the baselines"].reason)


SUMMED = """
from scalebench.strategies.torch.ddp import Ddp

class Mine(Ddp):
    def loss_weight(self, batch): return 2 * super().loss_weight(batch)
"""


@slow
def test_sums_of_gradients_are_named(dists, tmp_path):
    """Adam hides a factor from the losses, but not from the weights."""
    stated = {
        "baseline": "bare_torch",
        "framework": "torch",
        "backend": "gloo",
        "options": strategy_option_defaults("zero1"),
    }
    dists.strategy(code=SUMMED, yaml=strategy_yaml("mine", **stated))
    answer = answers(tmp_path / "asked")["one optimizer step per batch"]
    reason = "updates are 2.00 times the baseline's: summed and not averaged?"
    assert (answer.verdict, answer.reason) == (FAILS, reason)
