"""Fewer points, with the dips."""

from __future__ import annotations

import random

from scalebench.report.document import downsample


def test_few_points_stay_as_they_are() -> None:
    points = [(float(x), float(-x)) for x in range(20)]
    assert downsample(points, 20) == points
    assert downsample([], 4) == []


def test_dips_and_peaks_and_ends_stay() -> None:
    chance = random.Random(1)
    points = [(float(x), 100 + chance.random()) for x in range(10_000)]
    points[4321], points[8765] = (4321.0, 3.0), (8765.0, 900.0)
    found = downsample(points, 200)
    assert 150 < len(found) <= 200 and len(set(found)) == len(found)
    assert found[0] == points[0] and found[-1] == points[-1]
    assert (4321.0, 3.0) in found and (8765.0, 900.0) in found
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert len(downsample(points[:203], 200)) <= 200


def test_a_level_line_needs_one_point_a_stretch() -> None:
    assert len(downsample([(float(x), 5.0) for x in range(1000)], 100)) == 51
