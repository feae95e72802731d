"""Optimizers and losses by the names that the config uses."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from scalebench.spec import InputError
from scalebench.suggest import no_such


class Adam(keras.optimizers.Adam):
    """Adds its epsilon after the bias correction, as Kingma and Ba 2015 (algorithm 1) and PyTorch do.

    Keras adds it before ("epsilon hat" of their section 2), which makes it some thirty times as large in the first
    update, so that small gradients take other steps.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        epsilon, step = self.epsilon, tf.cast(self.iterations + 1, variable.dtype)
        self.epsilon = epsilon * tf.sqrt(1 - tf.pow(tf.cast(self.beta_2, variable.dtype), step))
        try:
            super().update_step(gradient, variable, learning_rate)
        finally:
            self.epsilon = epsilon


OPTIMIZERS: dict[str, Callable[[float], keras.optimizers.Optimizer]] = {
    "adam": Adam,  # its epsilon is 1e-7, which the other frameworks here take as well
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
}


def _squared(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.squared_difference(outputs, targets), -1)


def _cross_entropy(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)


# Each gives one number per sample; mse is the mean over the elements of its target.
LOSSES: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {"mse": _squared, "cross_entropy": _cross_entropy}


def optimizer(name: str, learning_rate: float) -> keras.optimizers.Optimizer:
    """The optimizer of that name; InputError with the nearest one otherwise."""
    if name not in OPTIMIZERS:
        raise InputError(no_such("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name](learning_rate)


def loss(name: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The loss function of that name, per sample; InputError with the nearest one otherwise."""
    if name not in LOSSES:
        raise InputError(no_such("loss", name, LOSSES))
    return LOSSES[name]


def set_exchange(optimizer: keras.optimizers.Optimizer, on: bool) -> None:
    """Whether updates traced from now on add the gradients up over the replicas; else each keeps its own."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of one that scales the loss
    vars(inner).pop("_all_reduce_sum_gradients", None)
    if not on:
        inner._all_reduce_sum_gradients = lambda grads_and_vars: list(grads_and_vars)
