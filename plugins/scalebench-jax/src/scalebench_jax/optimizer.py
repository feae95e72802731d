"""Optimizers and losses by their names in the config."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jax import Array

from scalebench.plugin_api import InputError, TrainSpec, unknown_name_message

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
