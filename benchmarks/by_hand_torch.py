"""Straightforward PyTorch training loops as their users write them: materials_cnn, and ResNet-50 v1.5 on GPUs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache

CAPTURE_WARMUP_STEPS = 11  # as DistributedDataParallel needs before a capture


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


class Bottleneck(nn.Module):
    """A residual block whose stride is in the convolution of 3 x 3 (v1.5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def build_resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if block == 0 and width > 64 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class ByHand:
    """A hand-written loop, whose data are indexed in memory, or one batch of noise for pictures."""

    def __init__(self, spec: RunSpec, rank: int, strategy: Strategy) -> None:
        train, self.device = spec.config.train, torch.device(getattr(strategy, "device", "cpu"))
        self.is_picture, self.half = spec.config.model.name.startswith("resnet50"), train.precision == "bfloat16"
        self.batch, self.at = spec.batch_per_device, 0
        model: nn.Module = build_resnet50() if self.is_picture else MaterialsCnn()
        if self.is_picture:
            model = model.to(memory_format=torch.channels_last)
            self.inputs = torch.randn(self.batch, 3, 224, 224).to(self.device, memory_format=torch.channels_last)
            self.targets = torch.randint(0, 1000, (self.batch,)).to(self.device)
        else:
            inputs, targets = cache.open_arrays(datasets.prepare(spec.config))
            self.inputs = torch.from_numpy(inputs.copy()).to(self.device)
            self.targets = torch.from_numpy(targets.copy()).to(self.device)
            generator = torch.Generator().manual_seed(rank)
            self.order = torch.randperm(len(self.inputs), generator=generator).to(self.device)
            # On a CPU a step takes up to 4 % longer from other weights, as where more units give zeros.
            model.load_state_dict(strategy.model.module.state_dict())  # type: ignore[attr-defined]
        model = model.to(self.device)
        horovod = "horovod" in spec.config.strategy.requires
        plain = horovod or not spec.config.strategy.backend
        ids = [self.device.index] if self.device.type == "cuda" else None
        self.net: nn.Module = model if plain else DistributedDataParallel(model, device_ids=ids)
        if train.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
                self.net.parameters(), lr=train.learning_rate, eps=1e-7, fused=True
            )
        else:
            momentum = train.momentum if train.optimizer == "momentum" else 0.0
            self.optimizer = torch.optim.SGD(self.net.parameters(), train.learning_rate, momentum, fused=True)
        if horovod:
            import horovod.torch as hvd

            names = ((f"by_hand.{name}", parameter) for name, parameter in model.named_parameters())
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=names)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step(*self.draw())

    def draw(self) -> tuple[Tensor, Tensor]:
        if self.is_picture:
            return self.inputs, self.targets
        rows = self.order[self.at : self.at + self.batch]
        self.at = (self.at + self.batch) % (len(self.order) - self.batch)
        return self.inputs[rows], self.targets[rows]

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad()
        loss_of = functional.cross_entropy if self.is_picture else functional.mse_loss
        if self.half:
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = loss_of(self.net(inputs), targets)
        else:
            loss = loss_of(self.net(inputs), targets)
        loss.backward()
        self.optimizer.step()


class ByGraph(ByHand):
    """The same step of one process in one CUDA graph: what is left where the host is no limit."""

    def __init__(self, spec: RunSpec, rank: int, strategy: Strategy) -> None:
        super().__init__(spec, rank, strategy)
        if "capturable" in self.optimizer.defaults:
            for group in self.optimizer.param_groups:
                group["capturable"] = True
        self.kept = tuple(tensor.clone() for tensor in self.draw())
        stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(CAPTURE_WARMUP_STEPS):
                self.step(*self.kept)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=stream):
            self.step(*self.kept)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for kept, drawn in zip(self.kept, self.draw(), strict=True):
                kept.copy_(drawn)
            self.graph.replay()
