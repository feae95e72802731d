"""Optimizers by their config names, and how the losses of shards and parts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import LossPart

# Keras' epsilon, so that both frameworks take the same steps; torch's own default is 1e-8.
EPSILON = 1e-7
CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_
RMSPROP_DECAY = 0.9  # of the running mean square, as in Keras; torch's own default is 0.99

Parameters = list[nn.Parameter]


def choose_sgd_kernel(device: str, is_sharded: bool) -> dict[str, bool]:
    """Return SGD's arguments `fused` and `foreach` for parameters on a kind of device (cpu or cuda).

    On GPUs only the fused kernel takes a scaled loss without a host synchronization. DTensor has no rule for it, so
    shards get the kernel over all parameters at once. On the CPU the fused kernel copies channels_last gradients.
    """
    on_gpu = device == "cuda"
    return {"fused": on_gpu and not is_sharded, "foreach": on_gpu and is_sharded}


def _sgd(parameters: Parameters, train: TrainSpec, rate: float, kernel: dict[str, bool]) -> Optimizer:
    momentum, nesterov = 0.0 if train.optimizer == "sgd" else train.momentum, train.optimizer == "nesterov"
    return SGD(
        parameters, lr=rate, momentum=momentum, nesterov=nesterov and momentum > 0, weight_decay=train.weight_decay,
        **kernel,
    )  # fmt: skip


# Adam adds weight_decay times the weights to the gradients, AdamW decays the weights. RMSprop is over all parameters at
# once (foreach), since torch has no fused kernel for it. Momentum as torch has it: gradients are accumulated, and each
# step scales their sum with its own learning rate.
OPTIMIZERS: dict[str, Callable[[Parameters, TrainSpec, float, dict[str, bool]], Optimizer]] = {
    "adam": lambda parameters, train, rate, _: Adam(
        parameters, lr=rate, eps=EPSILON, weight_decay=train.weight_decay, fused=True
    ),
    "adamw": lambda parameters, train, rate, _: AdamW(
        parameters, lr=rate, eps=EPSILON, weight_decay=train.weight_decay, fused=True
    ),
    **dict.fromkeys(("sgd", "momentum", "nesterov"), _sgd),
    "rmsprop": lambda parameters, train, rate, _: RMSprop(
        parameters, lr=rate, alpha=RMSPROP_DECAY, eps=EPSILON, weight_decay=train.weight_decay, foreach=True
    ),
}


def build_optimizer(
    train: TrainSpec, parameters: Iterable[nn.Parameter], rate: float, device: str | None = None
) -> Optimizer:
    """Build the optimizer that `train` names with that learning rate; InputError suggests the nearest name.

    Fused kernels assume that a gradient has its parameter's memory layout, which autograd ensures. They take either
    plain tensors or DTensors of one mesh, so that each of these is a parameter group of its own. `device` is the kind
    of device whose kernels are used, if not that of the parameters.
    """
    if train.optimizer not in OPTIMIZERS:
        raise InputError(unknown_name_message("optimizer", train.optimizer, OPTIMIZERS))
    by_mesh: dict[Any, Parameters] = {}
    for parameter in parameters:
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    kernels = [
        choose_sgd_kernel(device or group[0].device.type, hasattr(group[0], "to_local")) for group in by_mesh.values()
    ]
    first, *others = by_mesh.values()
    optimizer = OPTIMIZERS[train.optimizer](first, train, rate, kernels[0])
    for group, kernel in zip(others, kernels[1:], strict=True):
        optimizer.add_param_group({"params": group, **(kernel if isinstance(optimizer, SGD) else {})})
    return optimizer


def list_parameters(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer steps."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> None:
    """Scale the gradients such that the norm of all of them is at most `max_norm`, as torch.nn.utils.clip_grad_norm_
    does, without waiting for the device. For gradients in shards the processes add up one number."""
    local: dict[tuple[Any, ...], list[Tensor]] = {}  # by the groups over which they are divided
    for gradient in (parameter.grad for parameter in parameters if parameter.grad is not None):
        if hasattr(gradient, "to_local"):
            axes = [axis for axis, placement in enumerate(gradient.placements) if not placement.is_replicate()]
            groups = tuple(gradient.device_mesh.get_group(axis) for axis in axes)
            local.setdefault(groups, []).append(gradient.to_local())
        else:
            local.setdefault((), []).append(gradient)
    if not local:
        return
    squares = []
    for groups, gradients in local.items():
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        for group in groups:
            dist.all_reduce(square, group=group)
        squares.append(square)
    factor = (max_norm / (torch.stack(squares).sum().sqrt() + CLIP_EPSILON)).clamp(max=1.0)
    torch._foreach_mul_([gradient for gradients in local.values() for gradient in gradients], factor)


def sum_loss_parts(parts: Sequence[LossPart]) -> LossPart:
    """Add up the losses of the parts of a step."""
    if len(parts) == 1:
        return parts[0]
    return LossPart(sum(part.loss_sum for part in parts), sum(part.samples for part in parts))
