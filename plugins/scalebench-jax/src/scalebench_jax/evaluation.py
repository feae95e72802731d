"""Validation by one device, with the weights that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.plugin_api import ModelSpec, Source

Forward = Callable[[NDArray[Any]], NDArray[np.float32]]


def metrics(forward: Forward, wanted: ModelSpec, source: Source) -> dict[str, float]:
    """Means over all samples of `source`, of which `forward` gives the model's outputs.

    Of a classifier {'cross_entropy': mean, 'accuracy': share that is right}, else {'mse': over all outputs,
    'mse_<target>': of one, where they have names}.
    """
    sums_of = _classified if wanted.loss == "cross_entropy" else _squared_errors
    sums, samples = np.zeros(1), 0
    for batch in source.in_order():
        sums = sums + sums_of(forward(batch.inputs).astype(np.float64), batch.targets)
        samples += batch.samples
    means = [float(one) for one in sums / samples]
    if wanted.loss == "cross_entropy":
        return dict(zip(("cross_entropy", "accuracy"), means, strict=True))
    return {"mse": sum(means) / len(means), **_named(wanted.targets, means)}


def _named(targets: Sequence[str], means: Sequence[float]) -> dict[str, float]:
    return {f"mse_{name}": mean for name, mean in zip(targets, means, strict=True)} if targets else {}


def _squared_errors(outputs: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.square(outputs - targets).sum(0))


def _classified(outputs: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    outputs = outputs - outputs.max(-1, keepdims=True)
    losses = np.log(np.exp(outputs).sum(-1)) - outputs[np.arange(len(labels)), labels]
    return np.array([losses.sum(), (outputs.argmax(-1) == labels).sum()])
