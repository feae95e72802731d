"""Optimizers and losses by the names that the config uses, and the weight of a shard's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from scalebench.spec import InputError
from scalebench.suggest import no_such

# Keras' epsilon; torch's own default is 1e-8. One value, so that both frameworks take the same steps.
ADAM_EPSILON = 1e-7

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], Optimizer]] = {
    "adam": lambda parameters, rate: Adam(parameters, lr=rate, eps=ADAM_EPSILON, fused=True),
    "sgd": lambda parameters, rate: _sgd(parameters, rate, 0.0),
    "momentum": lambda parameters, rate: _sgd(parameters, rate, 0.9),
}

# Each gives the mean over the samples; mse also over the elements of a sample's target.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "cross_entropy": lambda outputs, labels: functional.cross_entropy(outputs, labels.long()),
}


def optimizer(name: str, parameters: Iterable[nn.Parameter], learning_rate: float) -> Optimizer:
    """The optimizer of that name; InputError with the nearest one otherwise.

    Fused kernels read a gradient as if it lay in memory as its parameter does, which autograd sees to.
    """
    if name not in OPTIMIZERS:
        raise InputError(no_such("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name](list(parameters), learning_rate)


def _sgd(parameters: list[nn.Parameter], rate: float, momentum: float) -> Optimizer:
    """Fused on a GPU, where a scaled loss then needs no waiting; on the CPU that copies channels_last gradients."""
    return SGD(parameters, lr=rate, momentum=momentum, fused=all(one.is_cuda for one in parameters))


def loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss function of that name; InputError with the nearest one otherwise."""
    if name not in LOSSES:
        raise InputError(no_such("loss", name, LOSSES))
    return LOSSES[name]


def shard_weight(samples: int, global_samples: int, replicas: int) -> float:
    """What to multiply a shard's mean loss by, before gradients are averaged over the replicas.

    The average is then the gradient of the mean over the whole global batch, for uneven shards too:
    sum over replicas of (samples * replicas / global_samples) * mean / replicas = sum of losses / global_samples.
    Exactly 1 where all shards are equal.
    """
    return samples * replicas / global_samples
