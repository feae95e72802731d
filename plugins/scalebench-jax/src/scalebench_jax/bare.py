"""One device with jax.jit only: the baseline of every JAX strategy."""

from __future__ import annotations

from scalebench_jax.base import JaxStrategy


class BareJax(JaxStrategy):
    """The `bare` baseline, without gradient synchronization."""

    def set_gradient_sync(self, on: bool) -> None:
        """Do nothing: there is no synchronization to switch off."""

    def backend_used(self) -> str | None:
        return None
