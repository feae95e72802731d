"""Optimizers and losses by the names that the config uses.

`train.accumulate`: the samples of one update on one device in parts, one after the other, and what they give added
up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.errors import InputError, no_such
from scalebench.core.spec import TrainSpec


def with_share(gradient: tf.Tensor, factor: float, other: tf.Tensor) -> tf.Tensor:
    """gradient + factor * other, as a difference: TensorFlow would make one sum of a sum over the devices and what is
    added to it, under another name than the one that the exchange is known by."""
    return gradient - (-factor) * other


def dense(gradients: Sequence[Any], variables: Sequence[Any]) -> list[tf.Tensor]:
    """All as tensors, of which every device has as many to exchange.

    Of a table that a network looks things up in, TensorFlow gives the rows that were used, a row as often as it was;
    Keras' Adam would square each of them for itself. Nothing is given for what the loss does not hang on.
    """
    pairs = zip(gradients, variables, strict=True)
    return [tf.zeros_like(variable) if one is None else tf.convert_to_tensor(one) for one, variable in pairs]


class Decaying(keras.optimizers.Optimizer):
    """Adds `l2` times the weights to their gradients when these are added up over the replicas and no longer scaled."""

    l2 = 0.0

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Keras' fit gives what its own tape has found."""
        given = self._trainable_variables if trainable_variables is None else trainable_variables
        super().apply(dense(grads, given), trainable_variables)

    def decayed(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        return with_share(gradient, self.l2, variable) if self.l2 else gradient


class Sgd(Decaying, keras.optimizers.SGD):
    """Follows the mean of the gradients that `momentum` gives, at the learning rate of the update, as PyTorch does:
    Goyal et al. 2017 (arXiv:1706.02677), equation 9.

    Keras' momentum is of steps (equation 10), and so goes on with the rates of updates before where the rate changes.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        step = self.decayed(gradient, variable)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            step = with_share(step, self.momentum, velocity)
            self.assign(velocity, step)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)


class Adam(Decaying, keras.optimizers.Adam):
    """Adds its epsilon after the bias correction, as Kingma and Ba 2015 (algorithm 1) and PyTorch do.

    Keras adds it before ("epsilon hat" of their section 2), which makes it some thirty times as large in the first
    update, so that small gradients take other steps.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        epsilon, step = self.epsilon, tf.cast(self.iterations + 1, variable.dtype)
        self.epsilon = epsilon * tf.sqrt(1 - tf.pow(tf.cast(self.beta_2, variable.dtype), step))
        try:
            super().update_step(self.decayed(gradient, variable), variable, learning_rate)
        finally:
            self.epsilon = epsilon


class RmsProp(Decaying, keras.optimizers.RMSprop):
    """Adds its epsilon to the square root, as PyTorch does; Keras adds it to what the root is taken of."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        gradient, mean_square = self.decayed(gradient, variable), self._velocities[self._get_variable_index(variable)]
        new = self.rho * mean_square + (1 - self.rho) * tf.square(gradient)
        self.assign(mean_square, new)
        step = gradient / (tf.sqrt(new) + self.epsilon)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)


def _adamw(train: TrainSpec, rate: float) -> Decaying:
    """Its decay is of the weights, before the update and at its learning rate (Loshchilov and Hutter 2019,
    arXiv:1711.05101, algorithm 2, in PyTorch's form), which Keras gives to any optimizer."""
    return Adam(rate, weight_decay=train.weight_decay or None)


# Epsilons are Keras' 1e-7, which the other frameworks here take as well.
OPTIMIZERS: dict[str, Callable[[TrainSpec, float], Decaying]] = {
    "adam": lambda train, rate: Adam(rate),
    "adamw": _adamw,
    "sgd": lambda train, rate: Sgd(rate),
    "momentum": lambda train, rate: Sgd(rate, momentum=float(train.momentum)),
    "rmsprop": lambda train, rate: RmsProp(rate),
}


def _squared(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.squared_difference(outputs, targets), list(range(1, len(targets.shape))))


def _cross_entropy(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
    return tf.reduce_mean(losses, list(range(1, len(targets.shape))))


# Each gives one number per sample, the mean over the elements of its target.
LOSSES: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {"mse": _squared, "cross_entropy": _cross_entropy}


def optimizer(train: TrainSpec, learning_rate: float) -> Decaying:
    """The one that `train` names, with its momentum and weight decay; InputError with the nearest name otherwise."""
    if train.optimizer not in OPTIMIZERS:
        raise InputError(no_such("optimizer", train.optimizer, OPTIMIZERS))
    made = OPTIMIZERS[train.optimizer](train, float(learning_rate))
    made.l2 = 0.0 if train.optimizer == "adamw" else train.weight_decay
    return made


def set_learning_rate(optimizer: keras.optimizers.Optimizer, rate: float) -> None:
    """On all devices. By TensorFlow's operation alone: assign() of Keras and tf.distribute takes up to 20 times as
    long, which is a tenth of a short update."""
    variable = optimizer.learning_rate.value
    for one in getattr(variable, "values", (variable,)):
        tf.raw_ops.AssignVariableOp(resource=one.handle, value=rate)


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


OfPart = Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]]
Shape = Sequence[int]


def summed(
    of_part: OfPart, inputs: tf.Tensor, targets: tf.Tensor, parts: int, shapes: Sequence[Shape]
) -> list[tf.Tensor]:
    """The sums over the parts of what `of_part` gives for each: float32, of these shapes.

    Parts differ by at most one sample, and there are as many as samples where there are fewer of these. It is a loop of
    the graph that does one turn at a time, so that no two parts' activations are in memory together, and no number of
    samples or parts traces anything anew.
    """
    samples = tf.shape(inputs)[0]
    count = tf.minimum(parts, samples)
    share, rest = samples // count, samples % count

    def turn(number: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        start = number * share + tf.minimum(number, rest)
        stop = start + share + tf.cast(number < rest, tf.int32)
        found = of_part(inputs[start:stop], targets[start:stop])
        return number + 1, [total + one for total, one in zip(sums, found, strict=True)]

    nothing = tf.constant(0), [tf.zeros(shape) for shape in shapes]
    _, sums = tf.while_loop(lambda number, sums: number < count, turn, nothing, parallel_iterations=1)
    return list(sums)
