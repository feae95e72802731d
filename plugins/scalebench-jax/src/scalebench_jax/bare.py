"""One device, jax.jit alone: what every JAX strategy is compared with."""

from __future__ import annotations

from scalebench_jax.base import JaxStrategy


class BareJax(JaxStrategy):
    """The `bare` baseline. It exchanges nothing."""

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""

    def backend_used(self) -> str | None:
        return None
