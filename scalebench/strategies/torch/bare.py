"""One device, a plain loop, no wrapper: what every PyTorch strategy is compared with.

Replicas that train beside each other and never talk: the control for everything but communication.
"""

from __future__ import annotations

from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch


class BareTorch(TorchStrategy):
    """The `bare` baseline. It forms no group and exchanges nothing."""

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""


class IndependentTorch(TorchStrategy):
    """N times bare, each on its own part of the samples. Its Gloo group carries the deadline and the metrics."""

    def group_backend(self) -> str:
        return "gloo"  # also on GPUs: a few numbers, and none of them in a timed block

    def loss_weight(self, batch: TorchBatch) -> float:
        """Each replica follows the mean over its own samples, since its gradients are averaged with no other."""
        return batch.share

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""
