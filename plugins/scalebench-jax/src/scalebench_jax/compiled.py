"""The compiled programs of a strategy: steps with and without gradient synchronization, and partial steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array

from scalebench_jax.replica import DevicePart, Replica, State

STEP, STEP_WITHOUT_SYNC, FORWARD, BACKWARD = "step", "step_without_sync", "forward", "backward"


class CompiledPrograms:
    """Programs that are compiled once per name and batch size, of which an epoch has at most two.

    Each takes (state, part, after, samples, rate). `after` is unused except that the program starts when it is ready.
    """

    def __init__(
        self,
        replica: Replica,
        on_all_devices: Callable[..., Any],
        device_number: Callable[[], Any],
        sum_gradients: Callable[[Any], Any],
    ) -> None:
        self._replica, self._on_all_devices = replica, on_all_devices
        self._device_number, self._sum_gradients = device_number, sum_gradients
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def compiled(self, name: str, state: State, part: DevicePart, *rest: Any) -> Any:
        """Return the compiled program of that name for arguments of these shapes."""
        key = name, part.inputs.shape
        if key not in self._compiled:
            self._compiled[key] = self.lowered(name, state, part, *rest).compile()
        return self._compiled[key]

    def lowered(self, name: str, state: State, part: DevicePart, *rest: Any) -> Any:
        """Return the program as it is passed to XLA."""
        donated = (0,) if name in (STEP, STEP_WITHOUT_SYNC) else ()  # the new state replaces the old one
        function = self._on_all_devices(partial(self._on_device, name))
        return jax.jit(function, donate_argnums=donated, keep_unused=True).lower(state, part, *rest)

    def _on_device(self, name: str, state: State, part: DevicePart, after: Array, samples: Array, rate: Array) -> Any:
        """Run one device's work on its own arrays, which keep their first axis of length 1."""
        state, part = jax.tree.map(lambda array: array[0], (state, part))
        device = self._device_number()
        if name == FORWARD:
            results: Any = (self._replica.training_loss(state, part, device),)
        elif name == BACKWARD:  # the gradients are returned, since XLA prunes unused operations
            loss_sum, gradients, _ = self._replica.gradients(state, part, samples, device)
            results = loss_sum, gradients
        else:
            sum_gradients = self._sum_gradients if name == STEP else _unchanged
            results = self._replica.step(state, part, samples, rate, device, sum_gradients)
        return jax.tree.map(lambda array: array[None], results)


def _unchanged(gradients: Any) -> Any:
    return gradients
