"""PyTorch. This package exports what a plugin's strategy builds upon; docs/plugin-api.md lists it."""

from scalebench.adapters.torch.base import TorchStrategy
from scalebench.adapters.torch.ddp import Ddp, DdpOptions
from scalebench.adapters.torch.evidence import UPDATES, ProfiledReplay, observed_backend
from scalebench.adapters.torch.feeding import TorchBatch
from scalebench.adapters.torch.group import Group

__all__ = ["UPDATES", "Ddp", "DdpOptions", "Group", "ProfiledReplay", "TorchBatch", "TorchStrategy", "observed_backend"]
