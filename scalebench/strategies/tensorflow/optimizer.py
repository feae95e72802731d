"""Optimizers and losses by their names in the config, and gradient accumulation (`train.accumulate`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.spec import TrainSpec
from scalebench.workloads import records


def add_scaled(gradient: tf.Tensor, factor: float, other: tf.Tensor) -> tf.Tensor:
    """Return gradient + factor * other, written as a difference: TensorFlow would merge an addition with the preceding
    sum over the devices into one operation of another name, by which the synchronization is not recognized."""
    return gradient - (-factor) * other


def dense_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> list[tf.Tensor]:
    """Return all gradients as dense tensors, so that every device has the same sizes to synchronize.

    For an embedding table TensorFlow returns only the used rows (IndexedSlices), with a repeated row as often as it was
    used, and Keras' Adam would square each of these separately. For a variable that the loss does not depend on,
    TensorFlow returns None, which becomes zeros.
    """
    return [
        tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


class DecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that adds `l2` times the weights to gradients that are already summed over replicas and unscaled."""

    l2 = 0.0

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Apply the gradients; Keras' fit passes the sparse ones of its own tape and no variables."""
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        super().apply(dense_gradients(grads, variables), trainable_variables)

    def add_weight_decay(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        return add_scaled(gradient, self.l2, variable) if self.l2 else gradient


class Sgd(DecayingOptimizer, keras.optimizers.SGD):
    """SGD whose momentum accumulates gradients and then applies the current learning rate, as in PyTorch: Goyal et al.
    2017 (arXiv:1706.02677), equation 9.

    Keras' momentum accumulates weight changes (equation 10), so that after a change of the learning rate it goes on
    with earlier rates. Nesterov's adds the momentum of the new velocity to the gradient.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        step = self.add_weight_decay(gradient, variable)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            new_velocity = add_scaled(step, self.momentum, velocity)
            step = add_scaled(step, self.momentum, new_velocity) if self.nesterov else new_velocity
            self.assign(velocity, new_velocity)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)


class Adam(DecayingOptimizer, keras.optimizers.Adam):
    """Adam that adds epsilon after the bias correction, as Kingma and Ba 2015 (algorithm 1) and PyTorch do.

    Keras adds it before ("epsilon hat" in their section 2), where it counts some thirty times as much in the first
    step, so that small gradients cause other weight changes.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        epsilon, step = self.epsilon, tf.cast(self.iterations + 1, variable.dtype)
        self.epsilon = epsilon * tf.sqrt(1 - tf.pow(tf.cast(self.beta_2, variable.dtype), step))
        try:
            super().update_step(self.add_weight_decay(gradient, variable), variable, learning_rate)
        finally:
            self.epsilon = epsilon


class RmsProp(DecayingOptimizer, keras.optimizers.RMSprop):
    """RMSprop that adds epsilon to the square root, as PyTorch does; Keras adds it to the mean square."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        gradient = self.add_weight_decay(gradient, variable)
        mean_square = self._velocities[self._get_variable_index(variable)]
        new = self.rho * mean_square + (1 - self.rho) * tf.square(gradient)
        self.assign(mean_square, new)
        step = gradient / (tf.sqrt(new) + self.epsilon)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)


# Epsilon is Keras' default of 1e-7, which scalebench also uses with the other frameworks. AdamW decays the weights
# before the step at its learning rate (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, in PyTorch's form),
# as every optimizer of Keras can.
OPTIMIZERS: dict[str, Callable[[TrainSpec, float], DecayingOptimizer]] = {
    "adam": lambda train, rate: Adam(rate),
    "adamw": lambda train, rate: Adam(rate, weight_decay=train.weight_decay or None),
    "sgd": lambda train, rate: Sgd(rate),
    "momentum": lambda train, rate: Sgd(rate, momentum=float(train.momentum)),
    "nesterov": lambda train, rate: Sgd(rate, momentum=float(train.momentum), nesterov=True),
    "rmsprop": lambda train, rate: RmsProp(rate),
}


# Each returns a number for each element of a target.
LOSSES: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "mse": tf.math.squared_difference,
    "cross_entropy": lambda outputs, targets: tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs),
}


def create_optimizer(train: TrainSpec, learning_rate: float) -> DecayingOptimizer:
    """Create the optimizer that `train` names, with its momentum and weight decay; raise InputError with the nearest
    name if there is none."""
    if train.optimizer not in OPTIMIZERS:
        raise InputError(unknown_name_message("optimizer", train.optimizer, OPTIMIZERS))
    optimizer = OPTIMIZERS[train.optimizer](train, float(learning_rate))
    optimizer.l2 = 0.0 if train.optimizer == "adamw" else train.weight_decay
    return optimizer


def set_learning_rate(optimizer: keras.optimizers.Optimizer, rate: float) -> None:
    """Set the learning rate on all devices. Uses TensorFlow's raw operation: assign() of Keras and tf.distribute takes
    up to 20 times as long, which is a tenth of a short step."""
    variable = optimizer.learning_rate.value
    for copy in getattr(variable, "values", (variable,)):
        tf.raw_ops.AssignVariableOp(resource=copy.handle, value=rate)


def loss_function(name: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return the loss of that name, a mean over the elements of each sample's target; raise InputError with the nearest
    name if there is none."""
    if name not in LOSSES:
        raise InputError(unknown_name_message("loss", name, LOSSES))
    return lambda outputs, targets: tf.reduce_mean(LOSSES[name](outputs, targets), list(range(1, len(targets.shape))))


def set_gradient_reduction(optimizer: keras.optimizers.Optimizer, on: bool) -> None:
    """Set whether steps traced from now on sum the gradients over the replicas; otherwise each replica uses its own."""
    vars(optimizer).pop("_all_reduce_sum_gradients", None)
    if not on:
        optimizer._all_reduce_sum_gradients = lambda grads_and_vars: list(grads_and_vars)


class SummingLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Dynamic loss scaling that looks for an overflow in gradients that are already summed over the replicas.

    Keras' looks at each replica's own gradients, and its inner optimizer sums them: one replica's overflow reaches the
    weights of all, and replicas in several processes that disagree about a step wait for each other's gradients.
    """

    def __init__(self, inner_optimizer: keras.optimizers.Optimizer) -> None:
        super().__init__(inner_optimizer)
        set_gradient_reduction(inner_optimizer, on=False)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        pairs = list(zip(dense_gradients(grads, variables), variables, strict=True))
        super().apply([gradient for gradient, _ in self._all_reduce_sum_gradients(pairs)], trainable_variables)


def accumulate_parts(
    process_part: Callable[[Any, tf.Tensor], list[tf.Tensor]],
    inputs: Any,
    targets: tf.Tensor,
    parts: int,
    shapes: Sequence[Sequence[int]],
) -> list[tf.Tensor]:
    """Apply `process_part` to the parts of a batch in turn; return the sums of its results (float32, of these shapes).

    Sizes of parts differ by at most one sample; with fewer samples than parts, each sample is a part. A graph loop
    processes one part at a time, so that activations of two parts are never in memory together and no number of
    samples or parts causes retracing.
    """
    if parts == 1:
        return process_part(inputs, targets)
    samples = tf.shape(targets)[0]
    count = tf.minimum(parts, samples)
    share, rest = samples // count, samples % count

    def add_part(index: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        start = index * share + tf.minimum(index, rest)
        stop = start + share + tf.cast(index < rest, tf.int32)
        part = records.map_fields(lambda tensor: tensor[start:stop], inputs)  # several, where samples are records
        results = process_part(part, targets[start:stop])
        return index + 1, [total + result for total, result in zip(sums, results, strict=True)]

    initial = tf.constant(0), [tf.zeros(shape) for shape in shapes]
    _, sums = tf.while_loop(lambda index, sums: index < count, add_part, initial, parallel_iterations=1)
    return list(sums)
