"""Validation metrics: sums on every process, added up over the group."""

from __future__ import annotations

import math
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
    with attribute_errors_to_user(spec):
        if user_code.has_user_loss(spec):
            names, sum_batch = [user_code.LOSS_METRIC], _sum_user_losses
        elif spec.loss == "cross_entropy":
            names, sum_batch = ["cross_entropy", "accuracy"], _sum_classification
        else:
            names = [f"mse_{name}" for name in spec.targets or range(math.prod(spec.target_shape))]
            sum_batch = _sum_squared_errors
        sums, samples = torch.zeros(len(names), dtype=torch.float64, device=device), 0
        model.eval()
        # A user's module may be one that inference_mode breaks, as it does scripted ones; and weights gathered in it
        # would not train afterwards.
        is_users = any(isinstance(module, UserModule) for module in model.modules())
        with torch.no_grad() if is_users or is_sharded else torch.inference_mode():
            for batch in map(to_tensors, source.in_order(even=is_sharded)):
                batch_sums = sum_batch(model, batch.to(device))
                if batch_sums is not None and batch.global_samples:
                    sums += batch_sums
                    samples += batch.samples
        model.train()
        *totals, count = sum_over_group([*sums.tolist(), float(samples)])
    means = {name: total / count for name, total in zip(names, totals, strict=True)}
    if sum_batch is not _sum_squared_errors:
        return means
    return {"mse": sum(means.values()) / len(means), **(means if spec.targets else {})}


def _sum_user_losses(model: nn.Module, batch: TorchBatch) -> Tensor | None:
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
