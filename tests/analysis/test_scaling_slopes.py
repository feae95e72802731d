"""What a curve comes to: slopes of known lines, jumps where a node ends, how far an efficiency is kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.analysis.repeats import pool_results
from scalebench.analysis.scaling_curves import (
    Curve,
    ScalingLimit,
    Slope,
    find_node_boundaries,
    find_scaling_limit,
    fit_slope,
    make_curves,
)
from tests.builders import sweeps


def curve(
    speedups: dict[int, float | None], nodes: int | None = None, width: float | None = 0.01, against: str = "bare"
) -> Curve:
    """Of known speedups by device count; `nodes` devices fill a node; limits `width` (a share) off on each side."""
    rows = []
    for gpus, value in speedups.items():
        row: dict[str, Any] = {"gpus": gpus, "run_id": f"{gpus}", f"baseline_{against}_id": "0"}
        row["nodes"] = 1 if nodes is None else math.ceil(gpus / nodes)
        row["throughput_samples_per_s"] = None if value is None else 100 * value
        for name, figure in ((f"speedup_{against}", value), (f"efficiency_{against}", value and value / gpus)):
            row[name] = figure
            row[f"{name}_low"] = None if figure is None or width is None else figure * (1 - width)
            row[f"{name}_high"] = None if figure is None or width is None else figure * (1 + width)
        row["throughput_low"] = None if value is None or width is None else 100 * value * (1 - width)
        row["throughput_high"] = None if value is None or width is None else 100 * value * (1 + width)
        rows.append(row)
    return Curve("ddp", {}, {}, rows)


def known(made: Curve, against: str = "bare") -> Slope:
    found = fit_slope(made, against)
    assert found is not None
    return found


def test_a_slope_by_hand() -> None:
    found = known(curve({1: 0.8, 2: 1.5, 4: 2.9}))
    fitted, offset = np.polyfit([1, 2, 4], [0.8, 1.5, 2.9], 1)
    assert (found.value, found.intercept) == pytest.approx((fitted, offset))
    assert found.points == ((1, 0.8), (2, 1.5), (4, 2.9))


def test_the_interval_is_student_t_of_the_regression() -> None:
    from scipy.stats import linregress, t

    x, y = [1, 2, 4, 6, 8], [0.83, 1.4, 2.2, 3.4, 3.9]
    found, theirs = known(curve(dict(zip(x, y, strict=True)))), linregress(x, y)
    reach = t.ppf(0.975, 3) * theirs.stderr
    assert found.low == pytest.approx(theirs.slope - reach) and found.high == pytest.approx(theirs.slope + reach)


def test_two_counts_give_a_slope_without_an_interval_and_one_gives_none() -> None:
    found = known(curve({1: 0.9, 2: 1.7}))
    assert found.value == pytest.approx(0.8) and (found.low, found.high) == (None, None)
    assert (
        fit_slope(curve({4: 3.0})) is None
        and fit_slope(curve({1: None, 2: 1.5})) is None
        and fit_slope(curve({})) is None
    )
    assert known(curve({1: 0.9, 2: None, 4: 2.7})).points == ((1, 0.9), (4, 2.7))


def test_the_thesis_slope_comes_back_from_its_overhead_and_slope() -> None:
    """0.45 speedup per GPU on alpha, whatever is lost at the first."""
    made = known(curve({n: 0.38 + 0.45 * n for n in (1, 2, 4, 6, 8, 9, 10)}))
    assert (made.value, made.low, made.high) == pytest.approx((0.45, 0.45, 0.45))


counts = st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True).map(sorted)


@settings(deadline=None)
@given(counts, st.floats(0.01, 1), st.floats(0, 2))
def test_of_an_exact_line_the_slope_is_exact(gpus: list[int], per_device: float, offset: float) -> None:
    found = known(curve({n: offset + per_device * n for n in gpus}))
    assert (found.value, found.intercept) == pytest.approx((per_device, offset), rel=1e-6, abs=1e-6)
    if len(gpus) > 2:
        assert found.low == pytest.approx(per_device, rel=1e-4, abs=1e-6)


@settings(deadline=None)
@given(counts, st.lists(st.floats(0.1, 100), min_size=8, max_size=8), st.sampled_from([0.125, 0.5, 8.0]))
def test_a_slope_scales_with_the_speedups(gpus: list[int], figures: list[float], factor: float) -> None:
    """As with another baseline: by the factor, limits too."""
    one, other = (known(curve(dict(zip(gpus, [f * by for f in figures], strict=False)))) for by in (1.0, factor))
    assert other.value == pytest.approx(one.value * factor, rel=1e-6, abs=1e-9)
    if one.low is not None and one.high is not None:
        assert (other.low, other.high) == pytest.approx((one.low * factor, one.high * factor), rel=1e-6, abs=1e-6)


def test_a_jump_stands_where_the_next_node_begins() -> None:
    made = curve({4: 3.6, 8: 6.4, 9: 3.6, 10: 4.0, 17: 5.1}, nodes=8)
    first, second = find_node_boundaries(made)
    assert (first.gpus, first.nodes) == ((8, 9), (1, 2)) and (second.gpus, second.nodes) == ((10, 17), (2, 3))
    assert (first.before, first.after) == (pytest.approx(0.8), pytest.approx(0.4))
    assert first.ratio == pytest.approx(0.5) and first.resolved is True
    # MOVER on the log scale of two limits of 1 %
    down = math.hypot(math.log(1 / 0.99), math.log(1.01))
    assert first.low == pytest.approx(0.5 * math.exp(-down)) and first.low < 0.5 < (first.high or 0) < 0.51
    assert find_node_boundaries(curve({1: 1, 2: 1.9, 8: 7})) == []


def test_a_jump_within_noise_is_not_resolved_and_without_an_interval_untold() -> None:
    (noisy,) = find_node_boundaries(curve({8: 6.4, 9: 7.19}, nodes=8, width=0.05))
    assert noisy.resolved is False
    (untold,) = find_node_boundaries(curve({8: 6.4, 9: 3.0}, nodes=8, width=None))
    assert (untold.low, untold.high, untold.resolved) == (None, None, None) and untold.ratio < 0.5
    open_ended = curve({8: 6.4, 9: 3.0}, nodes=8)
    open_ended.rows[1]["throughput_high"] = None  # infinite
    (found,) = find_node_boundaries(open_ended)
    assert found.high is None and found.low is not None and found.resolved is False


@pytest.mark.parametrize(
    "speedups, value, surely, again",
    [
        ({1: 0.95, 2: 1.8, 4: 3.0}, 2, 2, ()),
        ({1: 0.95, 2: 1.605, 4: 3.3}, 4, 1, ()),  # 0.8025 at 2: by its figure only
        ({1: 0.95, 2: 1.5, 4: 3.5}, 1, 1, (4,)),  # good again beyond a bad one
        ({1: 0.7, 2: 1.2}, None, None, ()),
        ({1: 0.95, 2: None, 4: 3.5}, 1, 1, (4,)),
        ({2: None}, None, None, ()),
    ],
)
def test_how_many_devices_keep_an_efficiency(
    speedups: dict[int, float | None], value: int | None, surely: int | None, again: tuple[int, ...]
) -> None:
    measured = max((gpus for gpus, speedup in speedups.items() if speedup is not None), default=None)
    assert find_scaling_limit(curve(speedups), 0.8) == ScalingLimit(0.8, value, surely, again, measured)


def test_no_interval_keeps_nothing_surely_but_a_row_is_its_own_baseline_exactly() -> None:
    assert find_scaling_limit(curve({1: 0.95, 2: 1.8}, width=None), 0.8).certain_gpus is None
    own = curve({1: 1.0, 2: 1.8}, width=None, against="self")
    own.rows[0]["baseline_self_id"] = own.rows[0]["run_id"]
    assert find_scaling_limit(own, 0.8, "self") == ScalingLimit(0.8, 2, 1, (), 2)


@pytest.mark.parametrize("wanted", [0.0, -1.0, math.nan])
def test_a_wanted_efficiency_is_a_share(wanted: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        find_scaling_limit(curve({1: 1.0}), wanted)


def test_on_rows_of_the_frame() -> None:
    results = [sweeps.run("bare_torch", 1), *(sweeps.run("ddp_gloo", gpus) for gpus in (1, 2, 4))]
    bare, ddp = make_curves(pool_results(results, [Path("run")] * 4))
    truth = {n: 0.95 * n * 0.9 ** math.log2(n) for n in (1, 2, 4)}
    assert known(ddp).value == pytest.approx(known(curve(truth)).value, rel=0.01)
    assert known(ddp, "self").value == pytest.approx(known(ddp).value / 0.95, rel=0.01)
    assert find_scaling_limit(ddp, 0.8) == ScalingLimit(0.8, 2, 2, (), 4) and find_scaling_limit(ddp, 0.5).gpus == 4
    assert (
        fit_slope(bare) is None and find_scaling_limit(bare, 0.8).certain_gpus == 1 and find_node_boundaries(ddp) == []
    )
