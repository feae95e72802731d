"""ModelContract: the tests that every network passes, built-in, of a plugin or of a user.

    class TestMine(ModelContract):
        model = "mine"

It is built in each framework that can, trained for a few steps from the same weights, and counted.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from scalebench.core.spec import ModelSpec
from scalebench.testing.launch import ContractRanks, Refused, Weights, launch_checks
from scalebench.testing.strategy_worker import START_WEIGHTS_FILE, CheckPlan
from scalebench.workloads import networks, user_code

# As small as possible: with batch normalization fewer samples turn rounding into steps.
SMALL_WORKLOAD = (
    "gpus=1 scaling=strong dataset.size=11 train.global_batch=4 dataset.validation_share=0.25 seed=3 "
    "train.dropout=false train.optimizer=sgd train.learning_rate=1e-3 measure.hang_s=300"
).split()
FORWARD_RTOL = 1e-4
# Rounding that turns a relu off or on changes all gradients before it if batches as small as these are normalized: in
# either framework they are some per cent off those in float64 (tests/strategies/test_framework_parity.py).
BATCH_NORMALIZATION_RTOL = 5e-2
STEPS = 2


def build_network_in(
    framework: str, overrides: list[str], folder: Path, given: Weights | None = None, steps: int = STEPS
) -> ContractRanks:
    """Build a network in one framework, from the `given` weights of PyTorch's if there are any, and train it."""
    if given is not None:
        np.savez(folder / START_WEIGHTS_FILE, **given)
    strategy = {"torch": "bare_torch", "keras": "bare_tensorflow"}[framework]
    try:
        plan = CheckPlan(steps, evaluates=steps > 0)
        return launch_checks([f"strategy={strategy}", *overrides], folder, plan=plan)
    except Refused as reason:
        pytest.skip(str(reason))


class ModelContract:
    """The contract of a model: subclass it and set `model`, and pytest collects the tests."""

    model: ClassVar[str] = ""
    overrides: ClassVar[tuple[str, ...]] = ()
    frameworks: ClassVar[tuple[str, ...]] = ("torch", "keras")
    loss_rtol: ClassVar[float | None] = None  # between frameworks, after training; None: one of the constants above

    @pytest.fixture(scope="class")
    @classmethod
    def model_overrides(cls, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        return [f"model={cls.model}", *SMALL_WORKLOAD, *cls.overrides, f"dataset.cache={cache}"]

    @pytest.fixture(scope="class")
    @classmethod
    def torch(cls, model_overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> ContractRanks:
        cls.skip_unless_requested("torch")
        return build_network_in("torch", model_overrides, tmp_path_factory.mktemp("torch"))

    @pytest.fixture(scope="class")
    @classmethod
    def keras(cls, model_overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> ContractRanks:
        cls.skip_unless_requested("keras")
        return build_network_in("keras", model_overrides, tmp_path_factory.mktemp("keras"))

    @pytest.fixture(scope="class")
    @classmethod
    def keras_from_torch(
        cls,
        torch: ContractRanks,
        model_overrides: list[str],
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> ContractRanks:
        """Build it in Keras with PyTorch's weights: built-in networks have the same ones, a user's are mapped."""
        if not user_code.is_user_model(torch.spec.config.model):
            built: ContractRanks = request.getfixturevalue("keras")
            return built
        cls.skip_unless_requested("keras")
        return build_network_in("keras", model_overrides, tmp_path_factory.mktemp("mapped"), torch.start[0])

    @pytest.fixture(params=["torch", "keras"])
    def either(self, request: pytest.FixtureRequest) -> ContractRanks:
        built: ContractRanks = request.getfixturevalue(request.param)
        return built

    def test_parameter_count(self, either: ContractRanks) -> None:
        """The YAML, the sum over the description, and the framework agree."""
        model = either.spec.config.model
        stated = [count for count in (model.params, count_described_parameters(model)) if count is not None]
        params = either.ranks[0].params
        assert params == sum(array.size for array in without_statistics(either.start[0]).values())
        assert set(stated) <= {params}

    def test_parameter_count_in_both_frameworks(self, torch: ContractRanks, keras: ContractRanks) -> None:
        assert torch.ranks[0].params == keras.ranks[0].params

    def test_it_trains(self, either: ContractRanks) -> None:
        """Losses are finite, and every trained weight changes."""
        losses, (end,) = either.losses(), either.weights
        assert len(losses) == STEPS
        assert np.isfinite(losses).all(), losses
        constant = [name for name, array in either.start[0].items() if np.array_equal(array, end[name])]
        assert not constant, f"not trained: {', '.join(constant)}"

    def test_the_same_seed_builds_the_same_network(
        self, either: ContractRanks, model_overrides: list[str], tmp_path: Path
    ) -> None:
        """The same seed gives the same weights: ranks and strategies start from one network."""
        framework = {"torch": "torch", "tensorflow": "keras"}[either.spec.config.strategy.framework]
        (again,) = build_network_in(framework, model_overrides, tmp_path / "again", steps=0).start
        (start,) = either.start
        assert again.keys() == start.keys()
        for name, array in start.items():
            np.testing.assert_array_equal(again[name], array, err_msg=name)

    def test_flops(self, torch: ContractRanks) -> None:
        """The forward pass of one sample has as many in the description as PyTorch counts."""
        model = torch.spec.config.model
        if user_code.is_user_model(model):
            pytest.skip("the FLOPs of a user network are not stated")
        assert torch.ranks[0].forward_flops == networks.build_network(model).forward_flops

    def test_same_network_in_both_frameworks(self, torch: ContractRanks, keras_from_torch: ContractRanks) -> None:
        """The same weights and batches give the same losses, and the same metrics in the end."""
        actual, expected = keras_from_torch.ranks[0], torch.ranks[0]
        if actual.cannot_map is not None:
            pytest.skip(f"the weights cannot be mapped: {actual.cannot_map}")
        keras_losses, torch_losses = keras_from_torch.losses(), torch.losses()
        assert np.allclose(keras_losses[:1], torch_losses[:1], FORWARD_RTOL, 0), (
            f"losses {keras_losses} in Keras and {torch_losses} in PyTorch differ from the first batch on: does a "
            f"Dense follow a Flatten, which has channels last in Keras? Do activations, epsilons and paddings agree?"
        )
        rtol = self.loss_rtol or (BATCH_NORMALIZATION_RTOL if expected.has_batch_normalization else FORWARD_RTOL)
        assert np.allclose(keras_losses, torch_losses, rtol, 0), (
            f"losses {keras_losses} in Keras and {torch_losses} in PyTorch begin equal, then diverge: "
            "the gradients differ"
        )
        if not expected.has_batch_normalization:
            assert actual.metrics == pytest.approx(expected.metrics, rel=10 * rtol)

    @classmethod
    def skip_unless_requested(cls, framework: str) -> None:
        if framework not in cls.frameworks:
            pytest.skip(f"not to be built in {framework}")


def count_described_parameters(model: ModelSpec) -> int | None:
    """Return the sum over the description at the shapes of the run; None for a user network."""
    if user_code.is_user_model(model):
        return None
    return networks.build_network(dataclasses.replace(model, params=None)).parameters


def without_statistics(arrays: Weights) -> Weights:
    """Return the arrays without moving statistics, which do not count as parameters."""
    return {name: array for name, array in arrays.items() if not name.endswith(("mean", "variance", "var", "tracked"))}
