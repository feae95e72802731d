"""DatasetContract: the tests that every data set passes, built-in, of a plugin or of a user.

    class TestMine(DatasetContract):
        dataset = "mine"

It is made twice from one seed and once from another, in caches of the test.
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
from scalebench.workloads import datasets, records
from scalebench.workloads.datasets import cache

# For a run that is resolved only for its samples: no framework, and no network is built.
DATA_ONLY_OVERRIDES = ("strategy=simulated", "gpus=1", "train.batch_per_device=1")
PLACEHOLDER_MODEL = ("model=custom", "model.torch=scalebench.testing.dataset_contract:build_placeholder")


def build_placeholder() -> None:
    """Placeholder model that takes any samples; never called."""


def dataset_overrides(name: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a run that reads this data set, with a placeholder model unless they name one."""
    model = () if any(override.startswith("model=") for override in overrides) else PLACEHOLDER_MODEL
    return [f"dataset={name}", *model, *overrides]


DEFAULT_SIZE = 60
INPUT_DTYPES = ("float32", "uint8", "int32", records.RECORD)


@dataclass
class MadeSamples:
    """The samples, and the config that they were made with."""

    config: Config
    inputs: NDArray[Any]
    targets: NDArray[Any]


def make_samples(overrides: list[str], folder: Path) -> MadeSamples:
    spec = resolve(compose_config([*overrides, f"dataset.cache={folder}"]))
    if spec.plugin_error is not None:
        pytest.fail(f"{spec.plugin_error}\n{spec.plugin_traceback}", pytrace=False)
    return MadeSamples(spec.config, *cache.open_arrays(datasets.prepare(spec.config)))


def list_arrays(part: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the arrays of all inputs or targets: one, or the fields of records."""
    return records.list_fields(records.split_fields(part, lambda array: array))


class DatasetContract:
    """The contract of a data set: subclass it and set `dataset`, and pytest collects the tests."""

    dataset: ClassVar[str] = ""
    overrides: ClassVar[tuple[str, ...]] = ()
    size: ClassVar[int] = DEFAULT_SIZE  # samples to make

    @classmethod
    def run_overrides(cls, size: int) -> list[str]:
        overrides = [f"dataset.size={size}", *cls.overrides]  # of two values of a key the last one counts
        return [*dataset_overrides(cls.dataset, overrides), *DATA_ONLY_OVERRIDES]

    @classmethod
    def usual_size(cls) -> int:
        return compose_config(dataset_overrides(cls.dataset, cls.overrides)).dataset.size

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> MadeSamples:
        return make_samples(cls.run_overrides(cls.size), tmp_path_factory.mktemp("samples"))

    def test_shapes(self, made: MadeSamples) -> None:
        """Each sample has one target, in the shapes that the model is built for."""
        model = made.config.model
        samples, targets = len(made.inputs), len(made.targets)
        assert samples == targets
        assert made.inputs.shape[1:] == tuple(model.input_shape)
        assert made.targets.shape[1:] == tuple(model.target_shape)

    def test_size(self, made: MadeSamples) -> None:
        """There are as many samples as the config says, which the plan of a training relies on."""
        if made.config.dataset.path is not None:
            pytest.skip("as many as its files have")
        samples, size = len(made.inputs), made.config.dataset.size
        assert samples == size

    def test_dtypes(self, made: MadeSamples) -> None:
        kept = records.RECORD if records.is_record(made.inputs.dtype) else str(made.inputs.dtype)
        assert kept == made.config.dataset.dtype
        assert kept in INPUT_DTYPES
        kinds = "f" if made.config.dataset.classes is None else "iu"
        is_record = records.is_record(made.targets.dtype)
        assert is_record or made.targets.dtype.kind in kinds, f"targets of {made.targets.dtype}"

    def test_numbers(self, made: MadeSamples) -> None:
        """They are finite, and not all equal, from which a network could learn nothing."""
        odd, bad = (
            sum(int((~np.isfinite(each)).sum()) for each in list_arrays(part)) for part in (made.inputs, made.targets)
        )
        assert (odd, bad) == (0, 0), f"{odd} of the inputs and {bad} of the targets are not finite numbers"
        varied = any(bool((each != each[:1]).any()) for each in list_arrays(made.inputs))
        assert varied, "all samples are the same"

    def test_labels(self, made: MadeSamples) -> None:
        classes = made.config.dataset.classes
        if classes is None:
            pytest.skip("targets are quantities")
        least, most = int(made.targets.min()), int(made.targets.max())
        assert 0 <= least < most < classes, f"labels from {least} to {most}, and dataset.classes={classes}"

    def test_split(self, made: MadeSamples) -> None:
        """Some of the YAML's samples train and some validate."""
        samples = len(made.inputs) if made.config.dataset.path is not None else self.usual_size()
        train = datasets.count_train_samples(made.config.dataset, samples)
        assert 0 < train < samples, f"{train} of {samples} samples train: dataset.validation_share"

    def test_same_seed_same_samples(self, made: MadeSamples, tmp_path: Path) -> None:
        again = make_samples(self.run_overrides(self.size), tmp_path / "again")
        np.testing.assert_array_equal(again.inputs, made.inputs)
        np.testing.assert_array_equal(again.targets, made.targets)

    def test_other_seed_other_samples(self, made: MadeSamples, tmp_path: Path) -> None:
        if made.config.dataset.path is not None:
            pytest.skip("read from files")
        other = make_samples(
            [*self.run_overrides(self.size), f"dataset.seed={made.config.dataset.seed + 1}"], tmp_path / "other"
        )
        is_equal = np.array_equal(other.inputs, made.inputs)
        assert not is_equal, "dataset.seed changes nothing"
