"""A straightforward PyTorch training loop for materials_cnn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache


class MaterialsCnn(nn.Module):
    """The network of the benchmark, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 16, kernel_size=7, padding=3)
        self.conv2 = nn.Conv1d(16, 24, kernel_size=7, padding=3)
        self.dense1 = nn.Linear(50 * 24, 125)
        self.dense2 = nn.Linear(125, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.transpose(1, 2)
        x = functional.max_pool1d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool1d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.dense1(x.transpose(1, 2).flatten(1)))
        return self.dense2(x)


class ByHand:
    """A hand-written loop, whose data are indexed in memory."""

    def __init__(self, spec: RunSpec, rank: int, strategy: Strategy) -> None:
        inputs, targets = cache.open_arrays(datasets.prepare(spec.config))
        self.inputs, self.targets = torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())
        self.batch = spec.batch_per_device
        model = MaterialsCnn()
        horovod = "horovod" in spec.config.strategy.requires
        plain = horovod or not spec.config.strategy.backend
        self.net: nn.Module = model if plain else DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(
            self.net.parameters(), lr=spec.config.train.learning_rate, eps=1e-7, fused=True
        )
        if horovod:
            import horovod.torch as hvd

            names = ((f"by_hand.{name}", parameter) for name, parameter in model.named_parameters())
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=names)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.order = torch.randperm(len(self.inputs), generator=torch.Generator().manual_seed(rank))
        self.at = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            rows = self.order[self.at : self.at + self.batch]
            self.at = (self.at + self.batch) % (len(self.order) - self.batch)
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self.net(self.inputs[rows]), self.targets[rows])
            loss.backward()
            self.optimizer.step()
