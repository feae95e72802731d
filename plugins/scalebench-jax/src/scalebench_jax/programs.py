"""The compiled programs of a strategy: an update, one without its exchange, and the parts that probes ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array

from scalebench_jax.replica import Part, Replica, State

UPDATE, ALONE, FORWARD, BACKWARD = "update", "alone", "forward", "backward"  # alone: without the exchange


class Programs:
    """Compiled once for each name and size of batch, of which an epoch has two at the most.

    Each takes (state, part, after, samples, rate). `after` is not looked at: the program begins when it is there.
    """

    def __init__(
        self,
        replica: Replica,
        on_all_devices: Callable[..., Any],
        device_number: Callable[[], Any],
        summed: Callable[[Any], Any],
    ) -> None:
        self._replica, self._on_all_devices = replica, on_all_devices
        self._device_number, self._summed = device_number, summed
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def compiled(self, name: str, state: State, part: Part, *rest: Any) -> Any:
        """The program of that name for these arguments, or others of their shapes."""
        key = name, part.inputs.shape
        if key not in self._compiled:
            self._compiled[key] = self.lowered(name, state, part, *rest).compile()
        return self._compiled[key]

    def lowered(self, name: str, state: State, part: Part, *rest: Any) -> Any:
        """The same as it is given to XLA."""
        donated = (0,) if name in (UPDATE, ALONE) else ()  # the new state takes the place of the old one
        function = self._on_all_devices(partial(self._on_device, name))
        return jax.jit(function, donate_argnums=donated, keep_unused=True).lower(state, part, *rest)

    def _on_device(self, name: str, state: State, part: Part, after: Array, samples: Array, rate: Array) -> Any:
        """One device's work on its own arrays, which keep their first axis of length 1."""
        state, part = jax.tree.map(lambda one: one[0], (state, part))
        device = self._device_number()
        if name == FORWARD:
            found: Any = (self._replica.training_loss(state, part, device),)
        elif name == BACKWARD:  # the gradients are given back, or XLA would leave out what finds them
            loss_sum, gradients, _ = self._replica.gradients(state, part, samples, device)
            found = loss_sum, gradients
        else:
            exchange = self._summed if name == UPDATE else _kept
            found = self._replica.update(state, part, samples, rate, device, exchange)
        return jax.tree.map(lambda one: one[None], found)


def _kept(gradients: Any) -> Any:
    return gradients
