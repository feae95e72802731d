"""Padding is not seen in losses, gradients or statistics, and pieces give together what a batch gives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import updates
from scalebench_jax.replica import DevicePart


def assert_same(one: Any, other: Any, rtol: float = 2e-4) -> None:
    for path, array in jax.tree_util.tree_leaves_with_path(one):
        wanted = dict(jax.tree_util.tree_leaves_with_path(other))[path]
        scale = max(np.abs(wanted).max(), 1e-6)
        np.testing.assert_allclose(array, wanted, atol=rtol * scale, err_msg=jax.tree_util.keystr(path))


def test_padding_is_not_seen() -> None:
    """Also where what stands there is far from any sample."""
    inputs, targets = updates.pictures(5)
    replica = updates.replica()
    whole = updates.found(replica, updates.part(inputs, targets), 5)
    far = np.concatenate([inputs, np.full((2, 8, 8, 3), 1000, np.float32)])
    counts = np.array([[1, 1, 1, 1, 1, 0, 0]], np.float32)
    padded = DevicePart(far[None], np.concatenate([targets, [0, 0]])[None], counts)
    assert_same(updates.found(replica, padded, 5), whole)


def test_a_piece_without_samples_changes_nothing() -> None:
    """The last batch of an epoch may have too few samples for all pieces."""
    inputs, targets = updates.pictures(2)
    replica = updates.replica()
    in_pieces = updates.found(replica, updates.part(inputs, targets, pieces=3), 2)
    one_each = updates.found(replica, updates.part(inputs, targets, pieces=2), 2)
    assert_same(in_pieces, one_each)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(in_pieces))


@pytest.mark.parametrize("samples", [6, 7])
def test_pieces_add_up(samples: int) -> None:
    """Each normalises by itself, so what they give is the sum of what each would give alone."""
    inputs, targets = updates.pictures(samples)
    replica = updates.replica()
    together = updates.found(replica, updates.part(inputs, targets, pieces=2), samples)
    half = -(-samples // 2)
    first, second = (
        updates.found(replica, updates.part(inputs[span], targets[span]), samples)
        for span in (slice(0, half), slice(half, None))
    )
    assert float(together.loss_sum) == pytest.approx(float(first.loss_sum + second.loss_sum), rel=1e-5)
    assert_same(together.gradients, jax.tree.map(np.add, first.gradients, second.gradients))


def test_gradients_are_of_the_share_of_the_global_batch() -> None:
    inputs, targets = updates.pictures(4)
    replica, part = updates.replica(), updates.part(*updates.pictures(4))
    mean, of_more = updates.found(replica, part, 4), updates.found(replica, part, 12)
    assert_same(jax.tree.map(lambda one: one / 3, mean.gradients), of_more.gradients)
    assert float(mean.loss_sum) == pytest.approx(float(of_more.loss_sum))
    loss_sum = jax.jit(replica.training_loss)(replica.initial_state(), updates.part(inputs, targets), 0)
    assert float(loss_sum) == pytest.approx(float(mean.loss_sum), rel=1e-5)


def test_the_initial_state_is_seeded() -> None:
    one, other = updates.replica().initial_state(), updates.replica().initial_state()
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))
    assert one.steps == 0
    assert sum(array.size for array in one.weights.values()) == updates.replica().network.parameters
