"""Optimizers and losses by the names that the config uses."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jax import Array

from scalebench.plugin_api import InputError, TrainSpec, no_such

EPSILON = 1e-7  # Keras', which the other frameworks of scalebench take as well; added after the bias correction
RMSPROP_KEPT = 0.9

# Each gives the direction of a step, which the learning rate of the update is multiplied with afterwards.
DIRECTIONS: dict[str, Callable[[TrainSpec], optax.GradientTransformation]] = {
    "adam": lambda train: optax.scale_by_adam(eps=EPSILON),
    "adamw": lambda train: optax.scale_by_adam(eps=EPSILON),
    "sgd": lambda train: optax.identity(),
    "momentum": lambda train: optax.trace(train.momentum),
    "rmsprop": lambda train: optax.scale_by_rms(RMSPROP_KEPT, EPSILON, eps_in_sqrt=False),
}


def direction(train: TrainSpec) -> optax.GradientTransformation:
    """What `train` names, with its weight decay: adamw's is taken off the weights, any other is added to the gradients.
    InputError with the nearest name otherwise."""
    if train.optimizer not in DIRECTIONS:
        raise InputError(no_such("optimizer", train.optimizer, DIRECTIONS))
    found = DIRECTIONS[train.optimizer](train)
    if not train.weight_decay:
        return found
    decay = optax.add_decayed_weights(train.weight_decay)
    return optax.chain(found, decay) if train.optimizer == "adamw" else optax.chain(decay, found)


def _squared(outputs: Array, targets: Array) -> Array:
    return jnp.mean(jnp.square(outputs - targets), -1)


# Each gives one number per sample; mse is the mean over the elements of its target.
LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "mse": _squared,
    "cross_entropy": optax.softmax_cross_entropy_with_integer_labels,
}


def loss(name: str) -> Callable[[Array, Array], Array]:
    """The loss of that name, for each sample; InputError with the nearest one otherwise."""
    if name not in LOSSES:
        raise InputError(no_such("loss", name, LOSSES))
    return LOSSES[name]
