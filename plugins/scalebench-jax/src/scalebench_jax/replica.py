"""What one device computes of an update: functions of arrays alone, for jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from scalebench.plugin_api import Config, Network, initial_weights
from scalebench_jax import training
from scalebench_jax.network import Arrays, NetworkFunction
from scalebench_jax.precision import COMPUTES_IN

Exchange = Callable[[Arrays], Arrays]


class State(NamedTuple):
    """All that an update changes."""

    weights: Arrays
    moving: Arrays
    slots: Any  # of the optimizer
    updates: Any  # so far


class Part(NamedTuple):
    """One device's samples of an update, dealt out to the pieces that it computes them in: (pieces, samples, ...)."""

    inputs: Any
    targets: Any
    counts: Any  # 1 for a sample, 0 for padding; None where there is no padding


class Found(NamedTuple):
    """What the pieces of an update give together."""

    loss_sum: Array
    gradients: Arrays
    moving: Arrays


class Replica:
    """The model, its loss and its optimizer."""

    def __init__(self, config: Config, network: Network) -> None:
        train = config.train
        self.seed, self.network = config.seed, network
        self.model = NetworkFunction(network, COMPUTES_IN[train.precision], train.dropout)
        self._loss, self._direction = training.loss(config.model.loss), training.direction(train)

    def start(self) -> State:
        """As every rank and every framework starts, in host memory."""
        arrays = initial_weights(((a.name, a.shape, a.init) for a in self.network.arrays), self.seed)
        trained = {a.name: arrays[a.name] for a in self.network.arrays if a.trainable}
        moving = {a.name: arrays[a.name] for a in self.network.arrays if not a.trainable}
        slots = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), jax.eval_shape(self._direction.init, trained))
        return State(trained, moving, slots, np.zeros((), np.uint32))

    def update(
        self, state: State, part: Part, samples: Array, rate: Array, device: Any, exchange: Exchange
    ) -> tuple[State, Array]:
        """(state after it, sum of the losses over this device's samples).

        `samples` is the size of the whole global batch: gradients added up over the devices, which is what `exchange`
        does, are those of the mean over it. `device` tells the devices' dropout apart.
        """
        found = self.gradients(state, part, samples, device)
        steps, slots = self._direction.update(exchange(found.gradients), state.slots, state.weights)
        weights = optax.apply_updates(state.weights, jax.tree.map(lambda step: -rate * step, steps))
        return State(weights, found.moving, slots, state.updates + 1), found.loss_sum

    def gradients(self, state: State, part: Part, samples: Array, device: Any) -> Found:
        """Of this device's share of the mean over the global batch."""

        def of_piece(so_far: Found, numbered: tuple[Any, Part]) -> tuple[Found, None]:
            number, piece = numbered
            share = jax.value_and_grad(self._share, has_aux=True)
            key = self._key(state.updates, device, number)
            (_, (loss_sum, moving)), gradients = share(state.weights, so_far.moving, piece, samples, key)
            added = jax.tree.map(jnp.add, so_far[:2], (loss_sum, gradients))
            return Found(*added, moving), None

        nothing = Found(jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.weights), state.moving)
        return _over_pieces(of_piece, nothing, part)

    def training_loss(self, state: State, part: Part, device: Any) -> Array:
        """The forward pass in training: the sum of the losses over this device's samples."""

        def of_piece(so_far: tuple[Array, Arrays], numbered: tuple[Any, Part]) -> tuple[tuple[Array, Arrays], None]:
            number, piece = numbered
            key = self._key(state.updates, device, number)
            loss_sum, moving = self._loss_sum(state.weights, so_far[1], piece, key)
            return (so_far[0] + loss_sum, moving), None

        loss_sum, _ = _over_pieces(of_piece, (jnp.zeros(()), state.moving), part)
        return loss_sum

    def _share(
        self, weights: Arrays, moving: Arrays, piece: Part, samples: Array, key: Array
    ) -> tuple[Array, tuple[Array, Arrays]]:
        loss_sum, moved = self._loss_sum(weights, moving, piece, key)
        return loss_sum / samples, (loss_sum, moved)

    def _loss_sum(self, weights: Arrays, moving: Arrays, piece: Part, key: Array) -> tuple[Array, Arrays]:
        outputs, moved = self.model.train(weights, moving, piece.inputs, piece.counts, key)
        losses = self._loss(outputs, piece.targets)
        return jnp.sum(losses if piece.counts is None else losses * piece.counts), moved

    def _key(self, updates: Any, device: Any, piece: Any) -> Array:
        key = jax.random.key(self.seed)
        for number in (updates, device, piece):
            key = jax.random.fold_in(key, number)
        return key


def _over_pieces(of_piece: Callable[..., Any], nothing: Any, part: Part) -> Any:
    """One piece after the other, so that no two pieces' activations are in memory together."""
    pieces = len(part.inputs)
    if pieces == 1:
        return of_piece(nothing, (0, jax.tree.map(lambda one: one[0], part)))[0]
    return lax.scan(of_piece, nothing, (jnp.arange(pieces), part))[0]
