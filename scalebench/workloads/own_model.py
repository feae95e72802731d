"""A user's own network, made by a function in PyTorch or in Keras, and a model filled in from its samples. Layer 1."""

from __future__ import annotations

import dataclasses
import math

from scalebench.plugins import PluginError
from scalebench.spec import InputError, ModelSpec
from scalebench.suggest import no_such
from scalebench.workloads import networks, own_code
from scalebench.workloads.kinds import Samples

KEYS = ("torch", "keras")
CUSTOM = "custom"  # the name in the YAML of a model without one
METRICS = {"cross_entropy": "accuracy", "mse": "mse"}  # loss -> what goes by the name of the metric
AUTO = "auto"


def is_own(model: ModelSpec) -> bool:
    """Whether it is made by functions of a user, rather than from a description of ours or of a plugin."""
    return model.torch is not None or model.keras is not None


def named(model: ModelSpec) -> ModelSpec:
    """With the digest of its files, and under its function's name where it has none; another model as it is.

    InputError as own_code.digest, for a custom model without a function, and for a function beside a network that is
    there already. What is wrong with a model that has a name of its own is a PluginError: its YAML is a plugin's.
    """
    told = [(key, reference) for key in KEYS if (reference := getattr(model, key)) is not None]
    if not told and model.name != CUSTOM:
        return model
    if not told:
        raise InputError(
            f"model={CUSTOM} is a network of your own: set model.torch=MODULE:FUNCTION, model.keras=MODULE:FUNCTION, "
            "or both"
        )
    if networks.is_known(model.name):
        raise InputError(f"model={model.name} is made already: model.{told[0][0]} goes with model={CUSTOM}")
    try:
        digests = [own_code.digest(reference, f"model.{key}") or "" for key, reference in told]
    except InputError as error:
        raise error if model.name == CUSTOM else PluginError(f"model={model.name}: {error}") from error
    name = told[0][1] if model.name == CUSTOM else model.name
    return dataclasses.replace(model, name=name, code="-".join(digests))


def takes_any(model: ModelSpec) -> bool:
    """Whether its shapes are those of the samples, unless the config says them."""
    return is_own(model) or not model.input_shape


def completed(model: ModelSpec, samples: Samples, dataset: str) -> ModelSpec:
    """With the shapes, the number of outputs, the loss and the metric that its config leaves to the `samples`.

    InputError for a loss that their targets do not go with. `dataset` is named there.
    """
    classes = samples.classes
    if takes_any(model):
        target_shape = [] if classes is not None else model.target_shape or list(samples.target_shape)
        model = dataclasses.replace(
            model,
            input_shape=model.input_shape or list(samples.input_shape),
            target_shape=target_shape,
            outputs=math.prod(target_shape) if classes is None else max(model.outputs, classes),
        )
    loss = ("mse" if classes is None else "cross_entropy") if model.loss == AUTO else model.loss
    if loss not in METRICS:
        raise InputError(f"model.loss={loss}: {no_such('loss', loss, [AUTO, *METRICS])}")
    if takes_any(model) and (loss == "mse") != (classes is None):
        has = "quantities" if classes is None else f"{classes} classes"
        raise InputError(f"model.loss={loss} does not go with the {has} of dataset={dataset}: leave it at {AUTO}")
    if takes_any(model) and model.targets and len(model.targets) != model.outputs:
        raise InputError(
            f"model.targets has {len(model.targets)} names for {model.outputs} quantities: name all or none"
        )
    metric = METRICS[loss] if model.metric == AUTO else model.metric
    return dataclasses.replace(model, loss=loss, metric=metric)
