"""PyTorch. This package exports what a plugin's strategy builds upon; docs/plugin-api.md lists it."""

from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp, DdpOptions
from scalebench.strategies.torch.group import Group
from scalebench.strategies.torch.observed import UPDATES, ProfiledReplay, observed_backend

__all__ = ["UPDATES", "Ddp", "DdpOptions", "Group", "ProfiledReplay", "TorchBatch", "TorchStrategy", "observed_backend"]
