"""Overrides that make the smallest run of a model or a data set for its contract. Layer 4."""

from __future__ import annotations

from collections.abc import Sequence

# Of a run that is resolved for the sake of its samples alone: no framework, and no network that is ever built.
DATA_ONLY = ("strategy=simulated", "gpus=1", "train.batch_per_device=1")
ANY_MODEL = ("model=custom", "model.torch=scalebench.testing.words:never_built")


def never_built() -> None:
    """Named where a model must be: it takes samples as they come."""


def of_dataset(name: str, overrides: Sequence[str]) -> list[str]:
    """The words of a run that reads this data set, with whatever model unless one is said."""
    model = () if any(word.startswith("model=") for word in overrides) else ANY_MODEL
    return [f"dataset={name}", *model, *overrides]
