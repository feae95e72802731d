"""Validation: sums on every process, put together over the group."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalebench.core.spec import ModelSpec
from scalebench.strategies.torch.batches import as_tensors
from scalebench.workloads.source import Source

Sum = Callable[[list[float]], list[float]]


def metrics(
    model: nn.Module, wanted: ModelSpec, source: Source, device: torch.device, over_group: Sum
) -> dict[str, float]:
    """Means over every sample of every replica's part.

    Of a classifier {'cross_entropy': mean, 'accuracy': share that is right}, else {'mse': over all outputs,
    'mse_<target>': of one, where they have names}. `over_group` adds up numbers over the processes, all of
    which have to call this. A model that gives None leaves the samples to another process. It is left in training mode.
    """
    if wanted.loss == "cross_entropy":
        loss, right = _means(model, source, device, 2, _classified, over_group)
        return {"cross_entropy": loss, "accuracy": right}
    width = math.prod(wanted.target_shape)
    means = _means(model, source, device, width, _squared_errors, over_group)
    named = {f"mse_{name}": mean for name, mean in zip(wanted.targets, means, strict=True)} if wanted.targets else {}
    return {"mse": sum(means) / len(means), **named}


def _means(
    model: nn.Module,
    source: Source,
    device: torch.device,
    width: int,
    sums_of: Callable[[Tensor, Tensor], Tensor],
    over_group: Sum,
) -> list[float]:
    """Over all samples, of `width` quantities whose sums over a batch `sums_of` gives from (outputs, targets)."""
    sums = torch.zeros(width, dtype=torch.float64, device=device)
    samples = 0
    model.eval()
    with torch.inference_mode():
        for batch in map(as_tensors, source.in_order()):
            outputs = model.forward(batch.inputs.to(device))
            if outputs is not None:
                sums += sums_of(outputs.float(), batch.targets.to(device))
                samples += batch.samples
    model.train()
    *totals, count = over_group([*sums.tolist(), float(samples)])
    return [total / count for total in totals]


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().double().reshape(len(outputs), -1).sum(0)


def _classified(outputs: Tensor, labels: Tensor) -> Tensor:
    """Of a sample with several labels the mean over them."""
    labels = labels.long()
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    right = outputs.argmax(1) == labels
    return torch.stack([each.double().reshape(len(labels), -1).mean(1).sum() for each in (losses, right)])
