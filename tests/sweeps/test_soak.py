"""A small soak: see benchmarks/soak.py."""

import pytest

from benchmarks.soak import soak


@pytest.mark.slow
def test_a_sweep_that_fails_and_is_killed_again_and_again_comes_to_its_end(tmp_path):
    report = soak(tmp_path, 24, 10, hang_s=20.0)
    assert report.problems == []
    assert report.kills >= 1 and report.starts > 24 and report.rows.total() == 24
    assert report.statuses["ok"] == report.rows["ok"] > 0 and report.statuses["failed"] > 0
