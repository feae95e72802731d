"""A small replica for tests, and what it finds out of an update."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scalebench_jax.dealing import split_batch
from scalebench_jax.replica import DevicePart, Replica

from scalebench.core.spec import Config, ModelSpec, TrainSpec
from scalebench.workloads.network import Network


def network() -> Network:
    """Small, with batch normalisation; a bias before that would have a gradient of rounding alone."""
    net = Network("small", (8, 8, 3))
    x = net.conv(net.input, "conv1", 6, 3, strides=2, bias=False)
    x = net.max_pool(net.relu(net.batch_norm(x, "norm1")), 2, strides=1)
    x = net.relu(net.batch_norm(net.conv(x, "conv2", 8, 3, bias=False), "norm2"))
    net.dense(net.global_avg_pool(x), "dense", 10)
    return net


def replica(**train: Any) -> Replica:
    model = ModelSpec(name="small", loss="cross_entropy")
    return Replica(Config(model=model, train=TrainSpec(optimizer="momentum", **train), seed=5), network())


def pictures(samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.normal(size=(samples, 8, 8, 3)).astype(np.float32), rng.integers(0, 10, samples)


def part(inputs: np.ndarray, targets: np.ndarray, pieces: int = 1) -> DevicePart:
    """All of it on one device."""
    dealt = split_batch(len(inputs), 1, pieces)
    counts = None if dealt.counts is None else dealt.counts[0]
    return DevicePart(inputs[dealt.rows[0]], targets[dealt.rows[0]], counts)


def found(one: Replica, of: DevicePart, samples: float) -> Any:
    return jax.jit(one.gradients)(one.initial_state(), of, np.float32(samples), 0)
