"""Functions that users may name as model.torch, with a fault outside of the forward pass, or beyond some strategies."""

import threading
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import pytorch_lightning as pl

from tests.strategies.torch.user_modules import Plain as Net


class _Raise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        raise ValueError("no gradient")


class Backward(Net):
    def forward(self, x):
        return _Raise.apply(super().forward(x))


def hook():
    def refuse(gradient):
        raise ValueError("no gradient")

    net = Net()
    net.last.bias.register_hook(refuse)
    return net


class Rated(Optimizer):
    """SGD with an argument that is required, a count of its steps and, with `fault`, an error in the second one. Its
    groups have no `lr`, and it does not call Lightning's closure."""

    def __init__(self, params, rate, fault=False):
        super().__init__(params, {"rate": rate})
        self.count, self.fault = 0, fault

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        if self.fault and self.count > 1:
            raise ValueError("no second step")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["rate"] / self.count)


class Listed(Rated):
    """Keeps its state in a list by the order of the parameters."""

    def __init__(self, params, rate):
        super().__init__(params, rate)
        self.moments = [torch.zeros_like(each) for group in self.param_groups for each in group["params"]]


def with_optimizer(kind="Rated", **options):
    net = Net()
    if kind == "LBFGS":
        return net, torch.optim.LBFGS(net.parameters())
    return net, {"Rated": Rated, "Listed": Listed}[kind](net.parameters(), rate=0.1, **options)


class Module(pl.LightningModule):
    """A LightningModule whose optimizer computes no gradients, which Lightning would have it do."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self):
        return Rated(self.parameters(), rate=0.1)


class Sparse(Net):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 1, sparse=True)

    def forward(self, x):
        return super().forward(x) + self.embedding((x.flatten(1)[:, 0] > 0).long())


class Unbinding(Net):
    def forward(self, x):
        rows = super().forward(x).unbind(0)
        return torch.stack([row.add_(1) for row in rows])


class Overwriting(Net):
    def forward(self, x):
        y = super().forward(x)
        y += 1
        return y


def scheduler():
    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    by_step = LambdaLR(optimizer, lambda step: [1.0, 0.5][step])
    return net, {"optimizer": optimizer, "lr_scheduler": {"scheduler": by_step, "interval": "step"}}


def step():
    return with_optimizer(fault=True)


class Constants(Net):
    """Has constants that no backend can send, a scalar of whole numbers that is frozen, and a lock."""

    def __init__(self):
        super().__init__()
        graph = torch.eye(3)
        self.register_buffer("graph", graph.to_sparse())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that these are new
            self.register_buffer("rows", graph.to_sparse_csr())
        self.register_buffer("order", torch.arange(3, dtype=torch.int16))
        self.register_buffer("small", torch.ones(3).to(torch.float8_e4m3fn))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.count = nn.Parameter(torch.tensor(3), requires_grad=False)
        self.factor = nn.Parameter(torch.tensor(0.5), requires_grad=False)


class Scalar(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return super().forward(x) * self.scale


class Locked(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.features = None

    def forward(self, x):
        with self.lock:
            self.features = super().forward(x)
            return self.features * 1.0


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script is deprecated, and still in use
        return torch.jit.script(Net())


class Gathering(Net):
    """Sums up over the ranks within its forward pass, where there are any."""

    def forward(self, x):
        if dist.is_initialized():
            dist.all_reduce(torch.zeros(1))
        return super().forward(x)
