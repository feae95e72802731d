"""Padding is not seen in losses, gradients or statistics, pieces together give what a batch gives; and precision."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scalebench_jax import devices as device_setup
from scalebench_jax.batches import split_batch
from scalebench_jax.replica import DevicePart, Replica

from scalebench.core.spec import Config, ModelSpec, TrainSpec
from scalebench.strategies.base import Unsupported
from scalebench.workloads.network import Network


def small_network() -> Network:
    """Small, with batch normalisation; a bias before that would have a gradient of rounding alone."""
    net = Network("small", (8, 8, 3))
    x = net.conv(net.input, "conv1", 6, 3, strides=2, bias=False)
    x = net.max_pool(net.relu(net.batch_norm(x, "norm1")), 2, strides=1)
    x = net.relu(net.batch_norm(net.conv(x, "conv2", 8, 3, bias=False), "norm2"))
    net.dense(net.global_avg_pool(x), "dense", 10)
    return net


def make_replica(**train: Any) -> Replica:
    model = ModelSpec(name="small", loss="cross_entropy")
    return Replica(Config(model=model, train=TrainSpec(optimizer="momentum", **train), seed=5), small_network())


def pictures(samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.normal(size=(samples, 8, 8, 3)).astype(np.float32), rng.integers(0, 10, samples)


def make_part(inputs: np.ndarray, targets: np.ndarray, pieces: int = 1) -> DevicePart:
    """All of it on one device."""
    dealt = split_batch(len(inputs), 1, pieces)
    counts = None if dealt.counts is None else dealt.counts[0]
    return DevicePart(inputs[dealt.rows[0]], targets[dealt.rows[0]], counts)


def sum_parts(one: Replica, of: DevicePart, samples: float) -> Any:
    return jax.jit(one.gradients)(one.initial_state(), of, np.float32(samples), 0)


def assert_same(one: Any, other: Any, rtol: float = 2e-4) -> None:
    for path, array in jax.tree_util.tree_leaves_with_path(one):
        wanted = dict(jax.tree_util.tree_leaves_with_path(other))[path]
        scale = max(np.abs(wanted).max(), 1e-6)
        np.testing.assert_allclose(array, wanted, atol=rtol * scale, err_msg=jax.tree_util.keystr(path))


def test_padding_is_not_seen() -> None:
    """Also where what stands there is far from any sample."""
    inputs, targets = pictures(5)
    replica = make_replica()
    whole = sum_parts(replica, make_part(inputs, targets), 5)
    far = np.concatenate([inputs, np.full((2, 8, 8, 3), 1000, np.float32)])
    counts = np.array([[1, 1, 1, 1, 1, 0, 0]], np.float32)
    padded = DevicePart(far[None], np.concatenate([targets, [0, 0]])[None], counts)
    assert_same(sum_parts(replica, padded, 5), whole)


def test_a_piece_without_samples_changes_nothing() -> None:
    """The last batch of an epoch may have too few samples for all pieces."""
    inputs, targets = pictures(2)
    replica = make_replica()
    in_pieces = sum_parts(replica, make_part(inputs, targets, pieces=3), 2)
    one_each = sum_parts(replica, make_part(inputs, targets, pieces=2), 2)
    assert_same(in_pieces, one_each)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(in_pieces))


@pytest.mark.parametrize("samples", [6, 7])
def test_pieces_add_up(samples: int) -> None:
    """Each normalises by itself, so what they give is the sum of what each would give alone."""
    inputs, targets = pictures(samples)
    replica = make_replica()
    together = sum_parts(replica, make_part(inputs, targets, pieces=2), samples)
    half = -(-samples // 2)
    first, second = (
        sum_parts(replica, make_part(inputs[span], targets[span]), samples)
        for span in (slice(0, half), slice(half, None))
    )
    assert float(together.loss_sum) == pytest.approx(float(first.loss_sum + second.loss_sum), rel=1e-5)
    assert_same(together.gradients, jax.tree.map(np.add, first.gradients, second.gradients))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_precision_is_read_off_the_program(name: str) -> None:
    replica = make_replica(precision=name)
    lowered = jax.jit(replica.gradients).lower(replica.initial_state(), make_part(*pictures(2)), np.float32(2), 0)
    assert device_setup.observed_settings(lowered.as_text()) == {"compiler": "xla", "precision": name}


def test_bfloat16_rounds_and_weights_stay_float32() -> None:
    part = make_part(*pictures(4))
    exact, rounded = (sum_parts(make_replica(precision=name), part, 4) for name in ("float32", "bfloat16"))
    assert {one.dtype for one in jax.tree.leaves(rounded)} == {np.dtype(np.float32)}
    assert float(rounded.loss_sum) != float(exact.loss_sum)
    assert float(rounded.loss_sum) == pytest.approx(float(exact.loss_sum), rel=0.05)


@pytest.mark.parametrize("train", [TrainSpec(precision="float16"), TrainSpec(data_format="nchw")])
def test_what_is_unsupported_is_told(train: TrainSpec) -> None:
    with pytest.raises(Unsupported, match=r"; (use|leave)"):
        device_setup.refuse_unsupported(train)


def test_tf32_needs_a_gpu(devices: list[jax.Device]) -> None:
    with pytest.raises(Unsupported, match="compute capability"):
        device_setup.configure_precision("tf32", devices[0])
