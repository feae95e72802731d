"""ModelContract: what every network keeps, ours, a plugin's and a user's own. Layer 4.

    class TestMine(ModelContract):
        model = "mine"

It is built in each framework that can, trained for a few updates from the same weights, and counted.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from scalebench.core.json_files import read_record
from scalebench.core.spec import ModelSpec, RunSpec
from scalebench.testing.launch import Refused, Weights, load_weights, started
from scalebench.testing.model_worker import FOUND, GIVEN, ONLY_BUILD, UPDATES, Found
from scalebench.workloads import networks, user_code

# As small as counts: with batch normalisation fewer samples make steps of what is rounding.
SMALL = (
    "gpus=1 scaling=strong dataset.size=11 train.global_batch=4 dataset.validation_share=0.25 seed=3 "
    "train.dropout=false train.optimizer=sgd train.learning_rate=1e-3 measure.hang_s=300"
).split()
FORWARD_RTOL = 1e-4
# A rounding that turns a relu off or on is seen in all gradients before it where batches as small as these are
# normalised: those of either framework are some percent off what float64 gives (tests/strategies/test_framework_parity.py).
NORMALISED_RTOL = 5e-2
BARE = {"torch": "bare_torch", "keras": "bare_tensorflow"}


@dataclass
class Built:
    """One network in one framework: what its rank saw, and the weights before and after."""

    spec: RunSpec
    found: Found
    start: Weights
    end: Weights


def build(strategy: str, words: list[str], folder: Path, given: Path | None = None, train: bool = True) -> Built:
    folder.mkdir(parents=True, exist_ok=True)
    if not train:
        (folder / ONLY_BUILD).touch()
    if given is not None:
        shutil.copy(given, folder / GIVEN)
    try:
        spec = started([f"strategy={strategy}", *words], folder, "scalebench.testing.model_worker")
    except Refused as reason:
        pytest.skip(str(reason))
    found = read_record(folder / FOUND, Found)
    stems = ("start", "end") if train else ("start", "start")
    return Built(spec, found, *(load_weights(folder / f"{stem}.npz") for stem in stems))


class ModelContract:
    """Subclass it, name the model, and pytest finds the tests."""

    model: ClassVar[str] = ""
    overrides: ClassVar[tuple[str, ...]] = ()
    frameworks: ClassVar[tuple[str, ...]] = ("torch", "keras")
    loss_rtol: ClassVar[float | None] = None  # between frameworks, once trained; None: as below

    @pytest.fixture(scope="class")
    @classmethod
    def words(cls, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
        cache = tmp_path_factory.getbasetemp() / "contract_data"
        return [f"model={cls.model}", *SMALL, *cls.overrides, f"dataset.cache={cache}"]

    @pytest.fixture(scope="class")
    @classmethod
    def torch(cls, words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Built:
        cls.asked_for("torch")
        return build(BARE["torch"], words, tmp_path_factory.mktemp("torch"))

    @pytest.fixture(scope="class")
    @classmethod
    def keras(cls, words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Built:
        cls.asked_for("keras")
        return build(BARE["keras"], words, tmp_path_factory.mktemp("keras"))

    @pytest.fixture(scope="class")
    @classmethod
    def same(
        cls, torch: Built, words: list[str], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Built:
        """In Keras from PyTorch's weights: those of our networks are the same anyway, a user's own go over in order."""
        if not user_code.is_user_model(torch.spec.config.model):
            found: Built = request.getfixturevalue("keras")
            return found
        cls.asked_for("keras")
        given = Path(tmp_path_factory.mktemp("given")) / "start.npz"
        np.savez(given, **torch.start)
        return build(BARE["keras"], words, tmp_path_factory.mktemp("same"), given)

    @pytest.fixture(params=["torch", "keras"])
    def either(self, request: pytest.FixtureRequest) -> Built:
        found: Built = request.getfixturevalue(request.param)
        return found

    def test_parameter_count(self, either: Built) -> None:
        """What the YAML asserts, what the description adds up to, and what the framework trains."""
        model = either.spec.config.model
        stated = [count for count in (model.params, described_parameters(model)) if count is not None]
        assert either.found.params == sum(array.size for array in trained(model, either.start).values())
        assert set(stated) <= {either.found.params}

    def test_parameter_count_in_both_frameworks(self, torch: Built, keras: Built) -> None:
        assert torch.found.params == keras.found.params

    def test_it_trains(self, either: Built) -> None:
        """Losses are numbers, and every weight that is trained moves."""
        assert len(either.found.losses) == UPDATES
        assert np.isfinite(either.found.losses).all(), either.found.losses
        still = [name for name, array in either.start.items() if np.array_equal(array, either.end[name])]
        assert not still, f"not trained: {', '.join(still)}"

    def test_built_alike_again(self, either: Built, words: list[str], tmp_path: Path) -> None:
        """The same weights from the same seed: ranks and strategies start from one network."""
        again = build(either.spec.config.strategy.name, words, tmp_path / "again", train=False)
        assert again.start.keys() == either.start.keys()
        for name, array in either.start.items():
            np.testing.assert_array_equal(again.start[name], array, err_msg=name)

    def test_flops(self, torch: Built) -> None:
        """Forward, of one sample: as described, and as PyTorch counts what really runs."""
        model = torch.spec.config.model
        if user_code.is_user_model(model):
            pytest.skip("the FLOPs of a network of one's own are not stated")
        assert torch.found.forward_flops == networks.build_network(model).forward_flops

    def test_same_network_in_both_frameworks(self, torch: Built, same: Built) -> None:
        """From the same weights, on the same batches: the same losses, and the same metrics in the end."""
        if same.found.cannot_map is not None:
            pytest.skip(f"the weights cannot be mapped: {same.found.cannot_map}")
        ours, theirs = same.found.losses, torch.found.losses
        assert np.allclose(ours[:1], theirs[:1], FORWARD_RTOL, 0), (
            f"losses {ours} in Keras and {theirs} in PyTorch differ from the first batch on: does a Dense follow a "
            f"Flatten, which has channels last in Keras? Do activations, epsilons and paddings agree?"
        )
        rtol = self.loss_rtol or (NORMALISED_RTOL if torch.found.normalises else FORWARD_RTOL)
        assert np.allclose(ours, theirs, rtol, 0), (
            f"losses {ours} in Keras and {theirs} in PyTorch begin alike and part: the gradients differ"
        )
        if not torch.found.normalises:
            assert same.found.metrics == pytest.approx(torch.found.metrics, rel=10 * rtol)

    @classmethod
    def asked_for(cls, framework: str) -> None:
        if framework not in cls.frameworks:
            pytest.skip(f"not asked in {framework}")


def described_parameters(model: ModelSpec) -> int | None:
    """As the description of a network adds up, at the shapes of the run; a user's own has none."""
    if user_code.is_user_model(model):
        return None
    return networks.build_network(dataclasses.replace(model, params=None)).parameters


def trained(model: ModelSpec, arrays: Weights) -> Weights:
    """Without moving statistics, which count as no parameters."""
    return {name: array for name, array in arrays.items() if not name.endswith(("mean", "variance", "var", "tracked"))}
