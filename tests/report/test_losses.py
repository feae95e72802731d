"""Losses of all ranks over steps, samples and seconds."""

from __future__ import annotations

import pytest

from scalebench.curve_records import CurvePoint
from scalebench.report.training_tables import compute_losses
from scalebench.results import Quality
from tests.helpers import rank, record


def two_ranks(**changes: object) -> list:
    first = {
        "warmup_block_steps": 3,
        "warmup_block_s": [0.5, 0.2],
        "warmup_losses": [9.0, None],
        "block_losses": [2.0, 1.0],
    }
    second = {**first, "warmup_losses": [5.0, None], "block_losses": [4.0, None], **changes}
    return [rank(0, [0.1, 0.2], [30, 30], **first), rank(1, [0.3, 0.1], [10, 10], **second)]


def test_blocks_of_all_ranks_weighted_by_samples() -> None:
    found = compute_losses(record("ddp", 2, ranks=two_ranks()))
    assert found.steps == [3, 6, 8, 10]
    assert found.samples == [60, 120, 160, 200]  # 20 a step over both, then what each block had
    assert found.seconds == pytest.approx([0.5, 0.7, 1.0, 1.2])
    assert found.losses == [pytest.approx((9 * 30 + 5 * 10) / 40), None, pytest.approx((2 * 30 + 4 * 10) / 40), 1.0]
    assert found.make_points(found.steps) == [(3, 8.0), (8, 2.5), (10, 1.0)]


def test_older_records_have_no_losses_of_the_warm_up_and_yet_its_time() -> None:
    found = compute_losses(record("ddp", 2, ranks=two_ranks(warmup_losses=[])))
    assert found.losses[0] == 9.0  # of the rank that has one
    ranks = [rank(0, [0.1], [30], warmup_block_s=[0.5, 0.2], warmup_block_steps=3)]
    assert compute_losses(record("ddp", 1, ranks=ranks)).losses == [None, None, 0.5]
    assert compute_losses(record("ddp", 1, ranks=ranks)).seconds == pytest.approx([0.5, 0.7, 0.8])
    ranks = [rank(0, [0.1], [30], warmup_block_s=[0.5])]  # of how many steps nobody knows
    assert compute_losses(record("ddp", 1, ranks=ranks)).steps == [2]


def test_blocks_that_a_rank_did_not_finish_and_ranks_that_measured_nothing() -> None:
    ranks = two_ranks()
    ranks[1].block_s, ranks[1].block_samples = [0.3], [10]
    assert compute_losses(record("ddp", 2, ranks=ranks)).steps == [3, 6, 8]
    assert compute_losses(record("ddp", 2, ranks=[])).steps == []
    assert compute_losses(record("ddp", 1, ranks=[rank(0)])).steps == []


def test_blocks_that_a_point_cut_short_are_stepped_over() -> None:
    """Points after 7 and 14 steps: blocks of 3 fit once and twice, and what is left of each epoch is in no series.
    The first step, which compiles, is in no seconds; the last batch of an epoch is a smaller one."""
    points = [CurvePoint(step, 0.0, samples, s, 1e-3, 1.0, 1) for step, samples, s in ((7, 60, 1.6), (14, 120, 3.7))]
    warmup = {"warmup_block_steps": 1, "warmup_block_s": [9.0, 0.2, 0.2], "warmup_losses": [5.0, 4.0, 3.0]}
    blocks = {"block_steps": 3, "block_losses": [2.0, 1.0, 0.5]}
    one = rank(0, [0.6, 0.8, 0.9], [30, 30, 30], **warmup, **blocks)
    found = compute_losses(record("ddp", 1, ranks=[one], quality=Quality(curve=points)))
    assert found.steps == [1, 2, 3, 6, 7, 10, 13, 14]
    assert found.samples == [10, 20, 30, 60, 60, 90, 120, 120]
    assert found.seconds == pytest.approx([0.0, 0.2, 0.4, 1.0, 1.6, 2.4, 3.3, 3.7])
    assert found.losses == [5.0, 4.0, 3.0, 2.0, None, 1.0, 0.5, None]


def test_points_between_which_no_block_fits() -> None:
    points = [CurvePoint(step, 0.0, 10 * step, 0.1 * step, 1e-3, 1.0, 1) for step in (1, 3, 5, 8)]
    warmup = {"warmup_block_steps": 1, "warmup_block_s": [9.0], "warmup_losses": [5.0]}
    one = rank(0, [0.6], [30], block_steps=3, block_losses=[2.0], **warmup)
    found = compute_losses(record("ddp", 1, ranks=[one], quality=Quality(curve=points)))
    assert found.steps == [1, 3, 5, 8] and found.samples == [10, 30, 50, 80]
    assert found.losses == [5.0, None, None, 2.0]


def test_a_training_that_was_over_in_its_warm_up() -> None:
    points = [CurvePoint(2, 1.0, 15, 0.5, 1e-3, 1.0, 1)]  # the second batch was a smaller one
    one = rank(0, warmup_block_steps=1, warmup_block_s=[9.0, 0.5], warmup_losses=[5.0, 4.0])
    found = compute_losses(record("ddp", 1, ranks=[one], quality=Quality(curve=points)))
    assert (found.steps, found.samples) == ([1, 2], [10, 15])
    assert (found.seconds, found.losses) == ([0.0, 0.5], [5.0, 4.0])
