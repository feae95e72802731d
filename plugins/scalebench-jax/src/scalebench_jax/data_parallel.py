"""Data parallelism over a mesh: one program on all devices of one process, gradients added up by an all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from scalebench_jax.base import JaxStrategy

AXIS = "devices"


class JaxDataParallel(JaxStrategy):
    """Every device has its own copy of the weights and its own part of the batch (jax.shard_map)."""

    _exchange: tuple[list[int], Any, Any] | None = None  # sizes, what adds buffers of them up, the buffers

    def layouts(self) -> tuple[Any, Any]:
        self.mesh = Mesh(np.array(self.devices), (AXIS,))
        return NamedSharding(self.mesh, Spec(AXIS)), NamedSharding(self.mesh, Spec())

    def on_all_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        split, whole = Spec(AXIS), Spec()
        specs = (split, split, split, whole, whole)
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=split, check_vma=False)

    def device_number(self) -> Any:
        return lax.axis_index(AXIS)

    def summed(self, gradients: Any) -> Any:
        """One device has nobody to exchange with, and XLA would go through the motions."""
        return lax.psum(gradients, AXIS) if len(self.devices) > 1 else gradients

    def set_gradient_sync(self, on: bool) -> None:
        self.exchanging = on

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """All-reduces of float32, each after the one before, or XLA would put them together."""
        if len(self.devices) == 1:  # nobody to exchange with, and nothing is exchanged
            return
        if self._exchange is None or self._exchange[0] != sizes:
            buffers = [np.zeros((len(self.devices), max(1, size // 4)), np.float32) for size in sizes]
            placed = jax.device_put(buffers, self._split)
            added = jax.shard_map(_in_turn, mesh=self.mesh, in_specs=Spec(AXIS), out_specs=Spec(AXIS), check_vma=False)
            self._exchange = sizes, jax.jit(added, donate_argnums=0).lower(placed).compile(), placed
        _, program, buffers = self._exchange
        self._issued, buffers = program(buffers)  # which the next exchange takes
        self.backlog.add(self._issued)
        self._exchange = sizes, program, buffers


def _in_turn(buffers: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
    """A number that is there when all sums are, and the sums."""
    found: list[jax.Array] = []
    for buffer in buffers:
        if found:
            buffer, found[-1] = lax.optimization_barrier((buffer, found[-1]))
        found.append(lax.psum(buffer, AXIS))
    return sum(one[:, 0] for one in found), found
