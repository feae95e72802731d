"""DatasetContract: what every data set keeps, ours, a plugin's and a user's own. Layer 4.

    class TestMine(DatasetContract):
        dataset = "mine"

It is made twice from one seed and once from another, in caches of the test.

Overrides that make the smallest run of a model or a data set for its contract. Layer 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import Config
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache

# Of a run that is resolved for the sake of its samples alone: no framework, and no network that is ever built.
DATA_ONLY = ("strategy=simulated", "gpus=1", "train.batch_per_device=1")
ANY_MODEL = ("model=custom", "model.torch=scalebench.testing.dataset_contract:never_built")


def never_built() -> None:
    """Named where a model must be: it takes samples as they come."""


def of_dataset(name: str, overrides: Sequence[str]) -> list[str]:
    """The words of a run that reads this data set, with whatever model unless one is said."""
    model = () if any(word.startswith("model=") for word in overrides) else ANY_MODEL
    return [f"dataset={name}", *model, *overrides]


SIZE = 60
INPUT_DTYPES = ("float32", "uint8", "int32")


@dataclass
class Made:
    """The samples, and the config that they were made by."""

    config: Config
    inputs: NDArray[Any]
    targets: NDArray[Any]


def make(words: list[str], folder: Path) -> Made:
    spec = resolve(compose_config([*words, f"dataset.cache={folder}"]))
    if spec.broken is not None:
        pytest.fail(f"{spec.broken}\n{spec.broken_log}", pytrace=False)
    return Made(spec.config, *cache.open_arrays(datasets.prepare(spec.config)))


class DatasetContract:
    """Subclass it, name the data set, and pytest finds the tests."""

    dataset: ClassVar[str] = ""
    overrides: ClassVar[tuple[str, ...]] = ()
    size: ClassVar[int] = SIZE  # samples that it is asked for
    begins_alike: ClassVar[bool] = False  # a larger one begins with the samples of a smaller one

    @classmethod
    def words(cls, size: int) -> list[str]:
        sized = [] if any(word.startswith("dataset.size=") for word in cls.overrides) else [f"dataset.size={size}"]
        return [*of_dataset(cls.dataset, [*sized, *cls.overrides]), *DATA_ONLY]

    @classmethod
    def usual_size(cls) -> int:
        return compose_config(of_dataset(cls.dataset, cls.overrides)).dataset.size

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> Made:
        return make(cls.words(cls.size), tmp_path_factory.mktemp("samples"))

    def test_shapes(self, made: Made) -> None:
        """One target to each sample, in the shapes that the model is built for."""
        model = made.config.model
        samples, targets = len(made.inputs), len(made.targets)
        assert samples == targets
        assert made.inputs.shape[1:] == tuple(model.input_shape)
        assert made.targets.shape[1:] == tuple(model.target_shape)

    def test_size(self, made: Made) -> None:
        """As many samples as the config says after it was made: the plan of a training counts on them."""
        if made.config.dataset.path is not None:
            pytest.skip("as many as its files have")
        samples, said = len(made.inputs), made.config.dataset.size
        assert samples == said

    def test_dtypes(self, made: Made) -> None:
        assert str(made.inputs.dtype) == made.config.dataset.dtype
        assert str(made.inputs.dtype) in INPUT_DTYPES
        kinds = "f" if made.config.dataset.classes is None else "iu"
        assert made.targets.dtype.kind in kinds, f"targets of {made.targets.dtype}"

    def test_numbers(self, made: Made) -> None:
        """Finite, and not all the same: a network could learn nothing from that."""
        odd, bad = int((~np.isfinite(made.inputs)).sum()), int((~np.isfinite(made.targets)).sum())
        assert (odd, bad) == (0, 0), f"{odd} of the inputs and {bad} of the targets are no finite numbers"
        varied = bool((made.inputs != made.inputs[:1]).any())
        assert varied, "all samples are the same"

    def test_labels(self, made: Made) -> None:
        classes = made.config.dataset.classes
        if classes is None:
            pytest.skip("targets are quantities")
        least, most = int(made.targets.min()), int(made.targets.max())
        assert 0 <= least < most < classes, f"labels from {least} to {most}, and dataset.classes={classes}"

    def test_split(self, made: Made) -> None:
        """Of as many as the YAML asks for, some train and some validate."""
        samples = len(made.inputs) if made.config.dataset.path is not None else self.usual_size()
        train = datasets.count_train_samples(made.config.dataset, samples)
        assert 0 < train < samples, f"{train} of {samples} samples train: dataset.validation_share"

    def test_same_seed_same_samples(self, made: Made, tmp_path: Path) -> None:
        again = make(self.words(self.size), tmp_path / "again")
        np.testing.assert_array_equal(again.inputs, made.inputs)
        np.testing.assert_array_equal(again.targets, made.targets)

    def test_other_seed_other_samples(self, made: Made, tmp_path: Path) -> None:
        if made.config.dataset.path is not None:
            pytest.skip("read from files")
        other = make([*self.words(self.size), f"dataset.seed={made.config.dataset.seed + 1}"], tmp_path / "other")
        alike = np.array_equal(other.inputs, made.inputs)
        assert not alike, "dataset.seed changes nothing"

    def test_begins_alike(self, made: Made, tmp_path: Path) -> None:
        """A larger data set of the same seed begins with the same samples, where that is said."""
        if not self.begins_alike:
            pytest.skip("it does not say that a larger one begins with the same samples")
        larger = make(self.words(2 * self.size), tmp_path / "larger")
        np.testing.assert_array_equal(larger.inputs[: self.size], made.inputs)
        np.testing.assert_array_equal(larger.targets[: self.size], made.targets)
