"""Validation metrics, computed on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.plugin_api import ModelSpec, Source

Forward = Callable[[NDArray[Any]], NDArray[np.float32]]


def evaluate_model(forward: Forward, model: ModelSpec, source: Source) -> dict[str, float]:
    """Return means over all samples of `source`; `forward` maps inputs to the model's outputs.

    For a classifier 'cross_entropy' and 'accuracy', else 'mse' over all outputs and 'mse_<target>' per named output.
    """
    sums_of = _classification_sums if model.loss == "cross_entropy" else _squared_error_sums
    sums, samples = np.zeros(1), 0
    for batch in source.in_order():
        sums = sums + sums_of(forward(batch.inputs).astype(np.float64), batch.targets)
        samples += batch.samples
    means = [float(mean) for mean in sums / samples]
    if model.loss == "cross_entropy":
        return dict(zip(("cross_entropy", "accuracy"), means, strict=True))
    return {"mse": sum(means) / len(means), **_metrics_per_target(model.targets, means)}


def _metrics_per_target(targets: Sequence[str], means: Sequence[float]) -> dict[str, float]:
    return {f"mse_{name}": mean for name, mean in zip(targets, means, strict=True)} if targets else {}


def _squared_error_sums(outputs: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.square(outputs - targets).sum(0))


def _classification_sums(outputs: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    outputs = outputs - outputs.max(-1, keepdims=True)
    losses = np.log(np.exp(outputs).sum(-1)) - outputs[np.arange(len(labels)), labels]
    return np.array([losses.sum(), (outputs.argmax(-1) == labels).sum()])
