"""Optimizers and losses by the names that the config uses, and the weight of a shard's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from scalebench.core.errors import InputError, no_such
from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import LossPart

# Keras' epsilon; torch's own default is 1e-8. One value, so that both frameworks take the same steps.
EPSILON = 1e-7
RMSPROP_KEPT = 0.9  # of the mean square so far, as in Keras; torch's own default is 0.99

Parameters = list[nn.Parameter]


def _sgd(parameters: Parameters, train: TrainSpec, rate: float, momentum: float) -> Optimizer:
    """Fused on a GPU, where a scaled loss then needs no waiting; on the CPU that copies channels_last gradients."""
    on_gpu = all(one.is_cuda for one in parameters)
    return SGD(parameters, lr=rate, momentum=momentum, weight_decay=train.weight_decay, fused=on_gpu)


def _adam(kind: type[Optimizer], parameters: Parameters, train: TrainSpec, rate: float) -> Optimizer:
    """Adam adds weight_decay times the weights to the gradients, AdamW takes it off the weights."""
    return kind(parameters, lr=rate, eps=EPSILON, weight_decay=train.weight_decay, fused=True)  # type: ignore[call-arg]


def _rmsprop(parameters: Parameters, train: TrainSpec, rate: float) -> Optimizer:
    """Over all parameters at once: torch has no fused kernel of it."""
    return RMSprop(parameters, lr=rate, alpha=RMSPROP_KEPT, eps=EPSILON, weight_decay=train.weight_decay, foreach=True)


# Momentum is torch's: what is carried on are gradients, and each step goes along all of them by its own rate.
OPTIMIZERS: dict[str, Callable[[Parameters, TrainSpec, float], Optimizer]] = {
    "adam": partial(_adam, Adam),
    "adamw": partial(_adam, AdamW),
    "sgd": lambda parameters, train, rate: _sgd(parameters, train, rate, 0.0),
    "momentum": lambda parameters, train, rate: _sgd(parameters, train, rate, train.momentum),
    "rmsprop": _rmsprop,
}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Over (samples, classes), or (samples, classes, positions) of which each is a row: where classes lie next to each
    other in memory, as a transformer leaves them, this copies nothing."""
    return functional.cross_entropy(outputs.movedim(1, -1).flatten(0, -2), labels.long().flatten())


# Each gives the mean over the samples, and over the elements of a sample's target.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "cross_entropy": _cross_entropy,
}


def optimizer(train: TrainSpec, parameters: Iterable[nn.Parameter], rate: float) -> Optimizer:
    """The optimizer that `train` names, at that learning rate; InputError with the nearest name otherwise.

    Fused kernels read a gradient as if it lay in memory as its parameter does, which autograd sees to. They take plain
    tensors or parts of tensors (DTensor), so that each kind is a group of its own.
    """
    if train.optimizer not in OPTIMIZERS:
        raise InputError(no_such("optimizer", train.optimizer, OPTIMIZERS))
    kinds: dict[type, Parameters] = {}
    for one in parameters:
        kinds.setdefault(type(one), []).append(one)
    first, *others = kinds.values()
    made = OPTIMIZERS[train.optimizer](first, train, rate)
    for group in others:
        made.add_param_group({"params": group})
    return made


def loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss function of that name; InputError with the nearest one otherwise."""
    if name not in LOSSES:
        raise InputError(no_such("loss", name, LOSSES))
    return LOSSES[name]


def shard_weight(samples: int, global_samples: int, replicas: int) -> float:
    """What to multiply a shard's mean loss by, before gradients are averaged over the replicas.

    The average is then the gradient of the mean over the whole global batch, for uneven shards too:
    sum over replicas of (samples * replicas / global_samples) * mean / replicas = sum of losses / global_samples.
    Exactly 1 where all shards are equal. A shard may come in parts, whose gradients are added up.
    """
    return samples * replicas / global_samples


def summed(parts: Sequence[LossPart]) -> LossPart:
    """What the parts of an update add to its loss together."""
    if len(parts) == 1:
        return parts[0]
    return LossPart(sum(part.loss_sum for part in parts), sum(part.samples for part in parts))
