"""Optimizers and losses by their names in the config, and validation metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from scalebench.plugin_api import InputError, ModelSpec, Source, TrainSpec, unknown_name_message

EPSILON = 1e-7  # Keras' default, which scalebench uses with all frameworks; added after the bias correction
RMSPROP_DECAY = 0.9

# Each returns the direction of a step, which is then multiplied by the learning rate.
OPTIMIZERS: dict[str, Callable[[TrainSpec], optax.GradientTransformation]] = {
    "adam": lambda train: optax.scale_by_adam(eps=EPSILON),
    "adamw": lambda train: optax.scale_by_adam(eps=EPSILON),
    "sgd": lambda train: optax.identity(),
    "momentum": lambda train: optax.trace(train.momentum),
    "nesterov": lambda train: optax.trace(train.momentum, nesterov=True),
    "rmsprop": lambda train: optax.scale_by_rms(RMSPROP_DECAY, EPSILON, eps_in_sqrt=False),
}


def create_optimizer(train: TrainSpec) -> optax.GradientTransformation:
    """Create the optimizer that `train` names: adamw's weight decay changes the weights, that of others the gradients.
    Raises InputError with the nearest name if there is none."""
    if train.optimizer not in OPTIMIZERS:
        raise InputError(unknown_name_message("optimizer", train.optimizer, OPTIMIZERS))
    optimizer = OPTIMIZERS[train.optimizer](train)
    if not train.weight_decay:
        return optimizer
    decay = optax.add_decayed_weights(train.weight_decay)
    return optax.chain(optimizer, decay) if train.optimizer == "adamw" else optax.chain(decay, optimizer)


def _squared_error(outputs: Array, targets: Array) -> Array:
    return jnp.mean(jnp.square(outputs - targets), -1)


# Each returns one number per sample; mse is the mean over the elements of its target.
LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "mse": _squared_error,
    "cross_entropy": optax.softmax_cross_entropy_with_integer_labels,
}


def loss_function(name: str) -> Callable[[Array, Array], Array]:
    """Return the per-sample loss of that name; raise InputError with the nearest name if there is none."""
    if name not in LOSSES:
        raise InputError(unknown_name_message("loss", name, LOSSES))
    return LOSSES[name]


Forward = Callable[[NDArray[Any]], NDArray[np.float32]]


def evaluate_model(forward: Forward, model: ModelSpec, source: Source) -> dict[str, float]:
    """Return means over all samples of `source`; `forward` maps inputs to the model's outputs.

    For a classifier 'cross_entropy' and 'accuracy', else 'mse' over all outputs and 'mse_<target>' per named output.
    """
    sums_of = _classification_sums if model.loss == "cross_entropy" else _squared_error_sums
    sums, samples = np.zeros(1), 0
    for batch in source.in_order():
        sums = sums + sums_of(forward(batch.inputs).astype(np.float64), batch.targets)
        samples += batch.samples
    means = [float(mean) for mean in sums / samples]
    if model.loss == "cross_entropy":
        return dict(zip(("cross_entropy", "accuracy"), means, strict=True))
    return {"mse": sum(means) / len(means), **_metrics_per_target(model.targets, means)}


def _metrics_per_target(targets: Sequence[str], means: Sequence[float]) -> dict[str, float]:
    return {f"mse_{name}": mean for name, mean in zip(targets, means, strict=True)} if targets else {}


def _squared_error_sums(outputs: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.square(outputs - targets).sum(0))


def _classification_sums(outputs: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    outputs = outputs - outputs.max(-1, keepdims=True)
    losses = np.log(np.exp(outputs).sum(-1)) - outputs[np.arange(len(labels)), labels]
    return np.array([losses.sum(), (outputs.argmax(-1) == labels).sum()])
