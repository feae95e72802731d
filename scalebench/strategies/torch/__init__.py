"""Strategies with PyTorch. The package exports what strategies of plugins build upon: docs/reference/plugin-api.md."""

from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp, DdpOptions
from scalebench.strategies.torch.group import TorchGroup
from scalebench.strategies.torch.observed import OBSERVED_STEPS, ProfiledReplay, observe_backend

__all__ = [
    "OBSERVED_STEPS",
    "Ddp",
    "DdpOptions",
    "ProfiledReplay",
    "TorchBatch",
    "TorchGroup",
    "TorchStrategy",
    "observe_backend",
]
