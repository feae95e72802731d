"""Step models drawn through points, their errors, and the published curves that these come from."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.published_series import SERIES_FILE, list_trials, load_series
from scalebench.analysis.prediction.extrapolation import MeasuredStep, extrapolate, load_limits
from scalebench.analysis.prediction.step_model import Links, StepModel, predict_parts
from scalebench.core.errors import InputError

MODEL = StepModel(1.0, Links(4, 1e9, 5e8), "all_reduce", 1e7, 4)
HEAD = SERIES_FILE.read_text(encoding="utf-8").partition("\n")[0] + "\n"


def test_a_model_that_is_cut_follows_its_points():
    points = [MeasuredStep(count, 32, 0.1 * count**0.5) for count in (1, 2, 4)]
    cut = extrapolate(replace(MODEL, sync="pipeline", growth=0.0), points)
    assert cut.step_s([1, 2, 16], 32) == pytest.approx([0.1, 0.1 * 2**0.5, 0.4], rel=1e-6)


def test_points_of_the_model_itself_change_nothing():
    truth = replace(MODEL, sample_s=1e-3)
    counts = np.array([1.0, 2, 4])
    points = [
        MeasuredStep(int(n), 32, float(s)) for n, s in zip(counts, predict_parts(truth, counts, 32).step_s, strict=True)
    ]
    drawn = extrapolate(MODEL, points)
    assert drawn.model.overhead_factor == pytest.approx(1, rel=1e-3)
    # Between nodes half of it, on a logarithmic scale, is the power law.
    expected = float(predict_parts(truth, 8, 32).step_s)
    assert drawn.slope is not None and float(replace(drawn, slope=None).step_s(8, 32)) == pytest.approx(
        expected, rel=1e-3
    )
    # Overheads that are larger than modelled stay so.
    cheap = extrapolate(MODEL, [MeasuredStep(1, 32, 0.1), MeasuredStep(2, 32, 0.102)])
    dear = extrapolate(MODEL, [MeasuredStep(1, 32, 0.1), MeasuredStep(2, 32, 0.14)])
    assert dear.model.overhead_factor > cheap.model.overhead_factor
    assert (dear.step_s([4, 64], 32) > cheap.step_s([4, 64], 32)).all()


def test_the_error_grows_with_the_distance_and_where_the_network_is_unknown():
    drawn = extrapolate(MODEL, [MeasuredStep(1, 32, 0.1)])
    scales = drawn.error_scale([1, 2, 4, 8, 64], 32)
    assert (np.diff(scales) > 0).all()
    assert float(drawn.error_scale(8, 32)) == pytest.approx(1.5 * float(drawn.error_scale(8, 32, knows_network=True)))
    with pytest.raises(ValueError, match="no points"):
        extrapolate(MODEL, [])


@pytest.mark.parametrize(
    ("counts", "measured"), [([1], "one_point"), ([1, 4], "one_node"), ([4, 8], "several_nodes"), ([8], "one_point")]
)
def test_what_is_measured_decides_the_limits(counts, measured):
    drawn = extrapolate(MODEL, [MeasuredStep(count, 32, 0.1 + 0.01 * count) for count in counts])
    assert drawn.measured == measured and measured in load_limits()


def test_more_than_half_of_the_predictions_from_one_device_are_within_a_few_per_cent():
    errors = [
        abs(point.step_s / float(trial.extrapolate().step_s(point.devices, point.batch)) - 1)
        for series in load_series() for trial in list_trials(series) if trial.protocol == "P1" for point in trial.unseen
    ]  # fmt: skip
    assert float(np.median(errors)) < 0.035


@pytest.mark.parametrize(("points", "reason"), [
    ("all_reduce,1,nvlink,8,,,1x32=a", "could not convert"), ("ring,1,nvlink,8,,,1x32=10", "sync ring"),
    ("all_reduce,1,nvlink,8,,,2x32=10 1x32=5", "ascending"), ("all_reduce,1,nvlink,8,,,", "ascending"),
    ("all_reduce,1,nvlink,,,,1x32=10", "invalid literal"), ("all_reduce,1,nvlink,8,,,1x32=0", "division by zero"),
])  # fmt: skip
def test_a_bad_row_is_named_in_one_line(tmp_path, points, reason):
    file = tmp_path / "series.csv"
    file.write_text(f"{HEAD}a,b,c,,{points}\n")
    with pytest.raises(InputError, match=f"series.csv:2 is no scaling curve .*{reason}"):
        load_series(file)
    with pytest.raises(InputError, match="cannot be read"):
        load_series(tmp_path / "none.csv")
    file.write_text(f"{HEAD}a,b,c,,all_reduce,,nvlink,8,,,1x32=10 2x32=20\n")
    (series,) = load_series(file)
    assert series.links.bytes_per_s is None and math.isinf(float(series.links.rate(np.array([1.0]))[0])), "cost nothing"
