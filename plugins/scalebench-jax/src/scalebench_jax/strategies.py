"""The strategies: one device with jax.jit only, and data parallelism over a mesh of all devices of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from scalebench_jax.base import JaxStrategy


class BareJax(JaxStrategy):
    """The `bare` baseline, without gradient synchronization."""

    def set_gradient_sync(self, on: bool) -> None:
        """Do nothing: there is no synchronization to switch off."""

    def backend_used(self) -> str | None:
        return None


AXIS = "devices"


class JaxDataParallel(JaxStrategy):
    """Data parallelism with jax.shard_map: every device has a copy of the weights and a part of the batch."""

    _isolated_sync: tuple[list[int], Any, Any] | None = None  # sizes, program, buffers

    def layouts(self) -> tuple[Any, Any]:
        self.mesh = Mesh(np.array(self.devices), (AXIS,))
        return NamedSharding(self.mesh, Spec(AXIS)), NamedSharding(self.mesh, Spec())

    def on_all_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        split, whole = Spec(AXIS), Spec()
        specs = (split, split, split, whole, whole)
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=split, check_vma=False)

    def device_number(self) -> Any:
        return lax.axis_index(AXIS)

    def sum_gradients(self, gradients: Any) -> Any:
        """Sum the gradients over the devices; for one device XLA would run a useless all-reduce."""
        return lax.psum(gradients, AXIS) if len(self.devices) > 1 else gradients

    def set_gradient_sync(self, on: bool) -> None:
        self.syncs_gradients = on

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Run all-reduces of float32 one after the other, since XLA would merge concurrent ones."""
        if len(self.devices) == 1:  # nothing is synchronized
            return
        if self._isolated_sync is None or self._isolated_sync[0] != sizes:
            buffers = [np.zeros((len(self.devices), max(1, size // 4)), np.float32) for size in sizes]
            placed = jax.device_put(buffers, self._split)
            reduce = jax.shard_map(
                _all_reduce_in_turn, mesh=self.mesh, in_specs=Spec(AXIS), out_specs=Spec(AXIS), check_vma=False
            )
            self._isolated_sync = sizes, jax.jit(reduce, donate_argnums=0).lower(placed).compile(), placed
        _, program, buffers = self._isolated_sync
        self._issued, buffers = program(buffers)  # the next call consumes them
        self.backlog.add(self._issued)
        self._isolated_sync = sizes, program, buffers


def _all_reduce_in_turn(buffers: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
    """Return a number that depends on all sums, and the sums."""
    sums: list[jax.Array] = []
    for buffer in buffers:
        if sums:
            buffer, sums[-1] = lax.optimization_barrier((buffer, sums[-1]))
        sums.append(lax.psum(buffer, AXIS))
    return sum(total[:, 0] for total in sums), sums
