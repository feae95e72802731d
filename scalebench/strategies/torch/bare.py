"""Training without gradient synchronization: the bare baseline on one device, and independent replicas."""

from __future__ import annotations

from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch


class BareTorch(TorchStrategy):
    """The `bare` baseline: one device, a plain loop, no wrapper and no group."""

    def set_gradient_sync(self, on: bool) -> None:
        """Do nothing: there is no gradient synchronization to switch off."""


class IndependentTorch(BareTorch):
    """N bare replicas, each on its own part of the samples: the control that has everything but communication.

    A Gloo group broadcasts the deadline and sums up the metrics.
    """

    def group_backend(self) -> str:
        return "gloo"  # also on GPUs: it carries a few numbers, and none of them in a timed block

    def loss_weight(self, batch: TorchBatch) -> float:
        """Return this process's share: each replica follows the mean loss over its own samples alone."""
        return batch.share
