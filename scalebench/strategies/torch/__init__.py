"""Strategies with PyTorch. The package exports what strategies of plugins build upon: docs/reference/plugin-api.md."""

from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp
from scalebench.strategies.torch.group import Message, TorchGroup
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.profiling import ProfiledSteps

__all__ = [
    "Ddp",
    "GroupStrategy",
    "Message",
    "ProfiledSteps",
    "TorchBatch",
    "TorchGroup",
    "TorchStrategy",
]
