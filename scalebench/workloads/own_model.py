"""A user's own network, made by a function in PyTorch or in Keras, and a config filled in from the data. Layer 1."""

from __future__ import annotations

import dataclasses

from scalebench.spec import ModelSpec
from scalebench.workloads import own_code

KEYS = ("torch", "keras")


def is_own(model: ModelSpec) -> bool:
    """Whether it is made by functions of a user, rather than from a description of ours or of a plugin."""
    return model.torch is not None or model.keras is not None


def named(model: ModelSpec) -> ModelSpec:
    """With the digest of its files, and under its function's name where it has none. InputError as own_code.digest."""
    told = [(key, getattr(model, key)) for key in KEYS if getattr(model, key) is not None]
    digests = [own_code.digest(reference, f"model.{key}") or "" for key, reference in told]
    name = told[0][1] if model.name == "custom" else model.name
    return dataclasses.replace(model, name=name, code="-".join(digests))
