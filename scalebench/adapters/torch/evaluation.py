"""Validation: errors summed on every process, put together over the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from scalebench.adapters.torch.feeding import as_tensors
from scalebench.workloads.source import Source

Sum = Callable[[list[float]], list[float]]


def mean_squared_errors(
    model: nn.Module, source: Source, device: torch.device, targets: Sequence[str], over_group: Sum
) -> dict[str, float]:
    """{'mse': over all target columns, 'mse_<target>': of one}, over every sample of every replica's part.

    `over_group` adds up numbers over the processes, all of which have to call this. The model is left
    in training mode.
    """
    sums = torch.zeros(len(targets), dtype=torch.float64, device=device)
    samples = 0
    model.eval()
    with torch.no_grad():
        for batch in map(as_tensors, source.in_order()):
            errors = model(batch.inputs.to(device)) - batch.targets.to(device)
            sums += errors.square().double().sum(0)
            samples += batch.samples
    model.train()
    *totals, count = over_group([*sums.tolist(), float(samples)])
    columns = {f"mse_{name}": total / count for name, total in zip(targets, totals, strict=True)}
    return {"mse": sum(totals) / count / len(totals), **columns}
