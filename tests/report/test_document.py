"""Charts and tables made from rows of the frame."""

import random

import pytest

from scalebench.analysis.scaling_curves import Curve
from scalebench.report import document
from scalebench.report.document import CurveGroup, downsample
from scalebench.report.report_data import make_relative_link
from tests.builders.report_sweeps import SCRIPT

SHARED = {"model": "m", "dataset": "d", "hardware": "h", "scaling": "weak", "batch": "10 per device"}


def row(gpus, rate=1.0, **more):
    usual = {"gpus": gpus, "throughput_samples_per_s": rate, "interval_over": "blocks", "repeats": 1, "status": "ok"}
    return {**usual, **more}


def curve(name, *rows, **shared):
    return Curve(name, {**SHARED, **shared}, {"strategy": name}, list(rows))


def test_ids_are_the_only_ones_and_hold_nothing_but_letters():
    curves = [curve("a", row(1), hardware=f"{SCRIPT} {'long ' * 40}{n}") for n in range(12)]
    groups = document.group_curves("usage", curves)
    ids = [group.make_id("gpu_util") for group in groups]
    assert len(set(ids)) == 12 and max(map(len, ids)) <= document.MAX_ID_LENGTH
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in ids)
    expected = "sync-epoch-3-m-on-d-hardware-h-weak-scaling-batch-10-per-dev"
    assert CurveGroup("sync", 3, SHARED, [], []).make_id("epoch") == expected


def test_of_many_curves_the_best_are_kept():
    many = [curve(str(n), row(1, 100.0 - n), row(2, 100.0)) for n in range(40)]
    many.append(curve("late", row(1, 1.0), row(8, 5.0)))
    kept, notes = document.select_best_curves(many, 10)
    assert [each.name for each in kept] == [*map(str, range(9)), "late"]
    assert [each.text[:24] for each in notes] == ["The fastest 10 of 41 cur"]
    assert document.select_best_curves(many[:10], 10) == (many[:10], [])
    large = curve("a", row(1), row(2), hardware="large")
    groups = document.group_curves("usage", [curve("a", row(1)), large], lambda curve: len(curve.rows) > 1)
    assert [(group.number, group.shared["hardware"]) for group in groups] == [(1, "large")]


def test_dips_and_peaks_and_ends_stay():
    level = [(float(x), 5.0) for x in range(1000)]
    assert downsample(level[:20], 20) == level[:20] and downsample([], 4) == []
    assert len(downsample(level, 100)) == 51, "a level line needs one a stretch"
    points = [(float(x), 100 + random.Random(x).random()) for x in range(10_000)]
    points[4321], points[8765] = (4321.0, 3.0), (8765.0, 900.0)
    rest = downsample(points, 200)
    assert 150 < len(rest) <= 200 and {points[0], points[-1], points[4321], points[8765]} <= set(rest)
    assert rest == sorted(set(rest)) and len(downsample(points[:203], 200)) <= 200


@pytest.mark.parametrize(("link", "expected"), [
    ("0/rank0.log", "./0/rank0.log"), ("a b/<x>.json", "./a%20b/%3Cx%3E.json"), ("", "./."),
    ("javascript:alert(1)", "./javascript%3Aalert%281%29"), ("https://example.org/x", "./https%3A/example.org/x"),
    ("//example.org/x", "./example.org/x"), ("x.json?a#b", "./x.json%3Fa%23b"),
])  # fmt: skip
def test_links_are_files_beside_the_page(link, expected):
    assert make_relative_link(link, "/sweep", "/sweep") == expected
    assert make_relative_link("0/trace.json", "/data/sweep", "/reports/today") == "./../../data/sweep/0/trace.json"
