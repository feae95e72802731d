"""Optimizers and loss functions by their config names, and how the losses of shards and parts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import LossPart

# Keras' epsilon, so that both frameworks take the same steps; torch's own default is 1e-8.
EPSILON = 1e-7
RMSPROP_DECAY = 0.9  # of the running mean square, as in Keras; torch's own default is 0.99

Parameters = list[nn.Parameter]


def _sgd(parameters: Parameters, train: TrainSpec, rate: float, momentum: float) -> Optimizer:
    """Build SGD, fused on GPUs only.

    There a scaled loss then needs no host synchronization; on the CPU the fused kernel copies channels_last gradients.
    """
    on_gpu = all(parameter.is_cuda for parameter in parameters)
    return SGD(parameters, lr=rate, momentum=momentum, weight_decay=train.weight_decay, fused=on_gpu)


def _adam(kind: type[Optimizer], parameters: Parameters, train: TrainSpec, rate: float) -> Optimizer:
    """Build Adam, which adds weight_decay times the weights to the gradients, or AdamW, which decays the weights."""
    return kind(parameters, lr=rate, eps=EPSILON, weight_decay=train.weight_decay, fused=True)  # type: ignore[call-arg]


def _rmsprop(parameters: Parameters, train: TrainSpec, rate: float) -> Optimizer:
    """Build RMSprop over all parameters at once (foreach), since torch has no fused kernel for it."""
    return RMSprop(parameters, lr=rate, alpha=RMSPROP_DECAY, eps=EPSILON, weight_decay=train.weight_decay, foreach=True)


# Momentum as torch has it: gradients are accumulated, and each step scales their sum with its own learning rate.
OPTIMIZERS: dict[str, Callable[[Parameters, TrainSpec, float], Optimizer]] = {
    "adam": partial(_adam, Adam),
    "adamw": partial(_adam, AdamW),
    "sgd": lambda parameters, train, rate: _sgd(parameters, train, rate, 0.0),
    "momentum": lambda parameters, train, rate: _sgd(parameters, train, rate, train.momentum),
    "rmsprop": _rmsprop,
}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of (samples, classes), or of (samples, classes, positions) with one row per position.

    Nothing is copied where classes are contiguous in memory, as in the output of a transformer.
    """
    return functional.cross_entropy(outputs.movedim(1, -1).flatten(0, -2), labels.long().flatten())


# Each returns the mean over the samples and over the elements of a sample's target.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "cross_entropy": _cross_entropy,
}


def build_optimizer(train: TrainSpec, parameters: Iterable[nn.Parameter], rate: float) -> Optimizer:
    """Build the optimizer that `train` names with that learning rate; InputError suggests the nearest name.

    Fused kernels assume that a gradient has its parameter's memory layout, which autograd ensures. They take either
    plain tensors or DTensors, so that each type is a parameter group of its own.
    """
    if train.optimizer not in OPTIMIZERS:
        raise InputError(unknown_name_message("optimizer", train.optimizer, OPTIMIZERS))
    by_type: dict[type, Parameters] = {}
    for parameter in parameters:
        by_type.setdefault(type(parameter), []).append(parameter)
    first, *others = by_type.values()
    optimizer = OPTIMIZERS[train.optimizer](first, train, rate)
    for group in others:
        optimizer.add_param_group({"params": group})
    return optimizer


def select_loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss function of that name; InputError suggests the nearest name."""
    if name not in LOSSES:
        raise InputError(unknown_name_message("loss", name, LOSSES))
    return LOSSES[name]


def compute_loss_weight(samples: int, global_samples: int, replicas: int) -> float:
    """Return the factor for a shard's mean loss, whose gradients are averaged over the replicas.

    With it the average is the gradient of the mean over the global batch, also for uneven shards:
    sum over replicas of (samples * replicas / global_samples) * mean / replicas = sum of losses / global_samples.
    It is exactly 1 where all shards are equal. A shard may come in parts, whose gradients are added up.
    """
    return samples * replicas / global_samples


def sum_loss_parts(parts: Sequence[LossPart]) -> LossPart:
    """Add up the losses of the parts of a step."""
    if len(parts) == 1:
        return parts[0]
    return LossPart(sum(part.loss_sum for part in parts), sum(part.samples for part in parts))
