from __future__ import annotations

import numpy as np
import pytest
from scalebench_jax.dealing import split_batch


@pytest.mark.parametrize(("samples", "devices", "pieces"), [(12, 3, 2), (31, 2, 1), (31, 3, 4), (3, 3, 4), (7, 3, 2)])
def test_each_row_counts_once(samples: int, devices: int, pieces: int) -> None:
    dealt = split_batch(samples, devices, pieces)
    counts = np.ones(dealt.rows.shape) if dealt.counts is None else dealt.counts
    assert sorted(dealt.rows[counts == 1]) == list(range(samples))
    assert (counts.sum((1, 2)).max() - counts.sum((1, 2)).min()) <= 1
    assert (counts.sum(2).max(1) - counts.sum(2).min(1)).max() <= 1
    part = -(-samples // devices)
    assert dealt.rows.shape[2] == -(-part // pieces)


def test_no_counts_where_all_is_even() -> None:
    dealt = split_batch(12, 3, 2)
    assert dealt.counts is None
    assert np.array_equal(dealt.rows.ravel(), np.arange(12))


def test_devices_have_contiguous_parts_and_the_first_ones_what_is_left() -> None:
    dealt = split_batch(5, 2, 1)
    assert dealt.rows.tolist() == [[[0, 1, 2]], [[3, 4, 0]]]
    assert dealt.counts is not None
    assert dealt.counts.tolist() == [[[1, 1, 1]], [[1, 1, 0]]]
