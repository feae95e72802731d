"""One device, a plain loop, no wrapper: what every PyTorch strategy is compared with."""

from __future__ import annotations

from scalebench.adapters.torch.base import TorchStrategy


class BareTorch(TorchStrategy):
    """The `bare` baseline. It forms no group and exchanges nothing."""

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""
