"""A step of the user's own in a hand-written loop: the functions of examples/token_transformer.py under DDP."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from examples import token_transformer
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache


class ByHand:
    """A hand-written loop over the same samples, which are tensors in memory."""

    def __init__(self, spec: RunSpec, rank: int, strategy: Strategy) -> None:
        inputs, targets = cache.open_arrays(datasets.prepare(spec.config))
        self.inputs = {name: torch.from_numpy(inputs[name].copy()) for name in inputs.dtype.names or ()}
        self.labels = torch.from_numpy(targets["next"].copy())
        self.batch = spec.batch_per_device
        module, self.optimizer = token_transformer.build(**spec.config.model.options)
        module.load_state_dict(strategy.model.module.state_dict())  # type: ignore[attr-defined]
        self.net = DistributedDataParallel(module)
        self.order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(rank))
        self.at = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            rows = self.order[self.at : self.at + self.batch]
            self.at = (self.at + self.batch) % (len(self.order) - self.batch)
            self.optimizer.zero_grad()
            outputs = self.net(**{name: tensor[rows] for name, tensor in self.inputs.items()})
            token_transformer.loss(outputs, {"next": self.labels[rows]}).backward()
            self.optimizer.step()
