"""Validation metrics: their names, and their means over the samples of all processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.spec import ModelSpec
from scalebench.workloads.source import Batch


def list_metrics(model: ModelSpec) -> list[str]:
    """Return the names of a model's metrics: the mean loss and the share of correct answers of a classifier, the mean
    squared error of each quantity, or the loss that code of the user's computes."""
    if model.loss == "mse":
        return [f"mse_{name}" for name in model.targets or range(math.prod(model.target_shape))]
    return ["cross_entropy", "accuracy"] if model.loss == "cross_entropy" else ["loss"]


def average_metrics(
    model: ModelSpec, sums: list[float], samples: int, sum_over_group: Callable[[list[float]], list[float]] = list
) -> dict[str, float]:
    """Return the means by name, from this process's sums over its samples. `sum_over_group` adds up numbers over the
    processes, all of which have to call this.

    Quantities have {'mse': over all of them}, and 'mse_<target>' of each where they have names.
    """
    *totals, count = sum_over_group([*sums, float(samples)])
    means = {name: total / count for name, total in zip(list_metrics(model), totals, strict=True)}
    if model.loss != "mse":
        return means
    return {"mse": sum(means.values()) / len(means), **(means if model.targets else {})}


def measure_outputs(
    model: ModelSpec,
    forward: Callable[[Any], NDArray[Any]],
    batches: Iterable[Batch],
    sum_over_group: Callable[[list[float]], list[float]] = list,
) -> dict[str, float]:
    """Return the metrics of the outputs that `forward` gives for the inputs of each batch, (samples, ..., classes) or
    (samples, *target shape). A sample with several labels counts with its mean over them."""
    sums, samples = np.zeros(len(list_metrics(model))), 0
    for batch in batches:
        outputs = forward(batch.inputs)
        if model.loss == "cross_entropy":
            outputs -= outputs.max(-1, keepdims=True)
            scores = np.take_along_axis(outputs, batch.targets[..., None], -1)[..., 0]
            losses = np.log(np.exp(outputs).sum(-1)) - scores
            values = [losses, outputs.argmax(-1) == batch.targets]
            sums += [each.reshape(batch.samples, -1).mean(1, dtype=np.float64).sum() for each in values]
        else:
            sums += np.square(outputs - batch.targets, dtype=np.float64).reshape(batch.samples, -1).sum(0)
        samples += batch.samples
    return average_metrics(model, sums.tolist(), samples, sum_over_group)
