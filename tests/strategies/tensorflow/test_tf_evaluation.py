"""Metrics against numpy, over uneven batches and over a group."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow import evaluation
from scalebench.workloads.source import Source

SAMPLES, REPLICAS = 23, 3
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(SAMPLES, 4)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 3)).astype(np.float32)
OUTPUTS = INPUTS @ KERNEL


def forward(inputs: np.ndarray) -> tf.Tensor:
    return tf.matmul(inputs, KERNEL)


def source(targets: np.ndarray, replica: int = 0, replicas: int = 1) -> Source:
    return Source(INPUTS, targets, global_batch=5, seed=0, replica=replica, replicas=replicas)


def alone(values: list[float]) -> list[float]:
    return values


def of_group(evaluate: object, targets: np.ndarray, *names: list[str]) -> list[dict[str, float]]:
    """What each replica of a group finds: first their sums are noted, and then put together."""
    noted: list[list[float]] = []
    for replica in range(REPLICAS):
        evaluate(forward, source(targets, replica, REPLICAS), *names, lambda sums: noted.append(sums) or sums)
    total = np.sum(noted, 0).tolist()
    parts = [source(targets, replica, REPLICAS) for replica in range(REPLICAS)]
    return [evaluate(forward, part, *names, lambda sums: total) for part in parts]


def test_mean_squared_errors() -> None:
    targets = RNG.normal(size=(SAMPLES, 3)).astype(np.float32)
    squares = np.square(OUTPUTS - targets, dtype=np.float64)
    wanted = {"mse": squares.mean(), **{f"mse_{name}": squares[:, i].mean() for i, name in enumerate("abc")}}
    found = evaluation.mean_squared_errors(forward, source(targets), list("abc"), alone)
    assert found == pytest.approx(wanted, rel=1e-6)
    for one in of_group(evaluation.mean_squared_errors, targets, list("abc")):
        assert one == pytest.approx(wanted, rel=1e-6)


def test_classification() -> None:
    labels = OUTPUTS.argmax(1)
    labels[:9] = (labels[:9] + 1) % 3  # nine are wrong
    entropies = np.log(np.exp(OUTPUTS).sum(1)) - OUTPUTS[np.arange(SAMPLES), labels]
    wanted = {"cross_entropy": entropies.mean(), "accuracy": 14 / 23}
    found = evaluation.classification(forward, source(labels), alone)
    assert found == pytest.approx(wanted, rel=1e-5)
    for one in of_group(evaluation.classification, labels):
        assert one == pytest.approx(wanted, rel=1e-5)
