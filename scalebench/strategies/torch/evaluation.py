"""Validation metrics: sums on every process, added up over the group."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalebench.core.spec import ModelSpec
from scalebench.strategies.base import GroupSum
from scalebench.strategies.torch.batches import TorchBatch, to_tensors
from scalebench.strategies.torch.user_module import UserModule, attribute_errors_to_user
from scalebench.workloads import user_code
from scalebench.workloads.source import Source


def compute_metrics(
    model: nn.Module,
    spec: ModelSpec,
    source: Source,
    device: torch.device,
    sum_over_group: GroupSum,
    is_sharded: bool = False,
) -> dict[str, float]:
    """Compute the mean metrics over all samples of all replicas.

    A classifier has {'cross_entropy': mean, 'accuracy': share of correct answers}, a model with a loss of the user's
    {'loss': mean}, other models {'mse': over all outputs, 'mse_<target>': of one output, where outputs have names}.
    `sum_over_group` adds up numbers over the processes, all of which have to call this. A model that returns None
    leaves its samples to another process. Where the model `is_sharded`, all processes compute equally many batches. The
    model is left in training mode.
    """
    mean = partial(_mean_over_samples, model, source, device, sum_over_group, is_sharded)
    with attribute_errors_to_user(spec):
        if user_code.has_user_loss(spec):
            (loss,) = mean(_sum_user_losses, 1)
            return {user_code.LOSS_METRIC: loss}
        if spec.loss == "cross_entropy":
            loss, accuracy = mean(_sum_classification, 2)
            return {"cross_entropy": loss, "accuracy": accuracy}
        width = math.prod(spec.target_shape)
        means = mean(_sum_squared_errors, width)
        per_target = (
            {f"mse_{name}": mean for name, mean in zip(spec.targets, means, strict=True)} if spec.targets else {}
        )
        return {"mse": sum(means) / len(means), **per_target}


def _mean_over_samples(
    model: nn.Module,
    source: Source,
    device: torch.device,
    sum_over_group: GroupSum,
    is_sharded: bool,
    sum_batch: Callable[[nn.Module, TorchBatch], Tensor | None],
    width: int,
) -> list[float]:
    """Average `width` quantities over all samples; `sum_batch` returns their sums over the samples of a batch."""
    sums = torch.zeros(width, dtype=torch.float64, device=device)
    samples = 0
    model.eval()
    # A user's module may be one that inference_mode breaks, as it does scripted ones; and weights gathered in it would
    # not train afterwards.
    is_users = any(isinstance(module, UserModule) for module in model.modules())
    with torch.no_grad() if is_users or is_sharded else torch.inference_mode():
        for batch in map(to_tensors, source.in_order(even=is_sharded)):
            batch_sums = sum_batch(model, batch.to(device))
            if batch_sums is not None and batch.global_samples:
                sums += batch_sums
                samples += batch.samples
    model.train()
    *totals, count = sum_over_group([*sums.tolist(), float(samples)])
    return [total / count for total in totals]


def _sum_user_losses(model: nn.Module, batch: TorchBatch) -> Tensor:
    """Return the mean that the user's code computes, times the samples."""
    return model.forward(batch.inputs, batch.targets).double().reshape(1) * batch.samples


def _sum_squared_errors(model: nn.Module, batch: TorchBatch) -> Tensor | None:
    outputs = model.forward(batch.inputs)
    if outputs is None:
        return None
    return (outputs.float() - batch.targets).square().double().reshape(len(outputs), -1).sum(0)


def _sum_classification(model: nn.Module, batch: TorchBatch) -> Tensor | None:
    """Sum up losses and correct answers over the samples; a sample with several labels counts with their mean."""
    outputs = model.forward(batch.inputs)
    if outputs is None:
        return None
    outputs, labels = outputs.float(), batch.targets.long()
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    correct = outputs.argmax(1) == labels
    return torch.stack([each.double().reshape(len(labels), -1).mean(1).sum() for each in (losses, correct)])


class CallForward(nn.Module):
    """Runs `forward` as a call of the module, which runs the hooks that gather shards of its weights."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *batch: Any) -> Tensor:
        outputs: Tensor = self.net(*batch)
        return outputs
