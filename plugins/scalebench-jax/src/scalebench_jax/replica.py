"""One device's part of a step, as pure functions of arrays for jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from scalebench.plugin_api import Config, Network, initial_weights
from scalebench_jax import optimizer
from scalebench_jax.devices import COMPUTE_DTYPES
from scalebench_jax.network import Arrays, NetworkFunction

GradientSum = Callable[[Arrays], Arrays]


class State(NamedTuple):
    """Everything that a step changes."""

    weights: Arrays
    moving: Arrays
    slots: Any  # state of the optimizer
    steps: Any  # number of finished steps


class DevicePart(NamedTuple):
    """One device's samples of a step, split into accumulated parts: (parts, samples, ...)."""

    inputs: Any
    targets: Any
    counts: Any  # 1 for a sample, 0 for padding; None where there is no padding


class PartResults(NamedTuple):
    """The sums over the accumulated parts of a step."""

    loss_sum: Array
    gradients: Arrays
    moving: Arrays


class Replica:
    """The model, its loss and its optimizer."""

    def __init__(self, config: Config, network: Network) -> None:
        train = config.train
        self.seed, self.network = config.seed, network
        self.model = NetworkFunction(network, COMPUTE_DTYPES[train.precision], train.dropout)
        self._loss, self._optimizer = optimizer.loss_function(config.model.loss), optimizer.create_optimizer(train)

    def initial_state(self) -> State:
        """Return the initial state, equal on all ranks and in all frameworks, in host memory."""
        arrays = initial_weights(((a.name, a.shape, a.init) for a in self.network.arrays), self.seed)
        trained = {a.name: arrays[a.name] for a in self.network.arrays if a.trainable}
        moving = {a.name: arrays[a.name] for a in self.network.arrays if not a.trainable}
        slots = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), jax.eval_shape(self._optimizer.init, trained))
        return State(trained, moving, slots, np.zeros((), np.uint32))

    def step(
        self, state: State, part: DevicePart, samples: Array, rate: Array, device: Any, sum_gradients: GradientSum
    ) -> tuple[State, Array]:
        """Return (state after the step, sum of the losses over this device's samples).

        `samples` is the size of the global batch: gradients summed over the devices, by `sum_gradients`, are those of
        the mean over it. `device` makes dropout differ between devices.
        """
        results = self.gradients(state, part, samples, device)
        directions, slots = self._optimizer.update(sum_gradients(results.gradients), state.slots, state.weights)
        weights = optax.apply_updates(state.weights, jax.tree.map(lambda direction: -rate * direction, directions))
        return State(weights, results.moving, slots, state.steps + 1), results.loss_sum

    def gradients(self, state: State, part: DevicePart, samples: Array, device: Any) -> PartResults:
        """Compute the gradients of this device's share of the mean over the global batch."""

        def add_part(so_far: PartResults, numbered: tuple[Any, DevicePart]) -> tuple[PartResults, None]:
            number, piece = numbered
            share = jax.value_and_grad(self._share, has_aux=True)
            key = self._key(state.steps, device, number)
            (_, (loss_sum, moving)), gradients = share(state.weights, so_far.moving, piece, samples, key)
            added = jax.tree.map(jnp.add, so_far[:2], (loss_sum, gradients))
            return PartResults(*added, moving), None

        nothing = PartResults(jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.weights), state.moving)
        return _scan_parts(add_part, nothing, part)

    def training_loss(self, state: State, part: DevicePart, device: Any) -> Array:
        """Run the forward pass in training mode; return the sum of the losses over this device's samples."""

        def add_part(
            so_far: tuple[Array, Arrays], numbered: tuple[Any, DevicePart]
        ) -> tuple[tuple[Array, Arrays], None]:
            number, piece = numbered
            key = self._key(state.steps, device, number)
            loss_sum, moving = self._loss_sum(state.weights, so_far[1], piece, key)
            return (so_far[0] + loss_sum, moving), None

        loss_sum, _ = _scan_parts(add_part, (jnp.zeros(()), state.moving), part)
        return loss_sum

    def _share(
        self, weights: Arrays, moving: Arrays, piece: DevicePart, samples: Array, key: Array
    ) -> tuple[Array, tuple[Array, Arrays]]:
        loss_sum, moved = self._loss_sum(weights, moving, piece, key)
        return loss_sum / samples, (loss_sum, moved)

    def _loss_sum(self, weights: Arrays, moving: Arrays, piece: DevicePart, key: Array) -> tuple[Array, Arrays]:
        outputs, moved = self.model.train(weights, moving, piece.inputs, piece.counts, key)
        losses = self._loss(outputs, piece.targets)
        return jnp.sum(losses if piece.counts is None else losses * piece.counts), moved

    def _key(self, steps: Any, device: Any, piece: Any) -> Array:
        key = jax.random.key(self.seed)
        for number in (steps, device, piece):
            key = jax.random.fold_in(key, number)
        return key


def _scan_parts(of_piece: Callable[..., Any], nothing: Any, part: DevicePart) -> Any:
    """Process one part after the other, so that the activations of two parts are never in memory together."""
    pieces = len(part.inputs)
    if pieces == 1:
        return of_piece(nothing, (0, jax.tree.map(lambda one: one[0], part)))[0]
    return lax.scan(of_piece, nothing, (jnp.arange(pieces), part))[0]
