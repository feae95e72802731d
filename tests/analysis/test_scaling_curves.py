"""Scaling curves: which rows form a curve and a group, their names, slopes, node boundaries and scaling limits."""

import dataclasses
import itertools
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.analysis import scaling_curves
from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.identity import CURVE_COLUMNS
from tests.builders import sweeps
from tests.builders.frames import pool_results
from tests.builders.runs import MACHINE


def pooled(*results):
    return pool_results(list(results), [Path("run")] * len(results))


def several(strategies, gpus=(1, 2, 4), **changes):
    return [sweeps.run(name, count, **changes) for name in strategies for count in gpus]


def named(curves):
    return {curve.name: curve.gpus for curve in curves}


def test_models_of_one_name_are_told_apart_by_their_options_before_their_sizes():
    frame = pooled(*several(["ddp_gloo"], (1, 2)))
    both = pd.concat([frame, frame.assign(model_params=2_000_000)])
    parts = scaling_curves.group_curves(scaling_curves.make_curves(both))
    assert [group["parameters"] for group, _ in parts] == ["153,441", "2,000,000"]
    assert scaling_curves.format_group_title(parts[1][0]).endswith("batch 10 per device, parameters 2,000,000")
    assert [named(members) for _, members in parts] == [{"ddp_gloo": [1, 2]}] * 2
    options = [f"flops=1000 sample_bytes={size}" for size in (12_288, 602_112)]
    both = pd.concat([frame.assign(model_options=options[0], model_params=10),
                      frame.assign(model_options=options[1], model_params=20)])  # fmt: skip
    parts = scaling_curves.group_curves(scaling_curves.make_curves(both))
    assert [group["options"] for group, _ in parts] == options and "parameters" not in parts[0][0]
    edited = pd.concat([both, both.assign(model_params=30)])  # the file of a network, not its options
    assert [
        group.get("parameters") for group, _ in scaling_curves.group_curves(scaling_curves.make_curves(edited))
    ] == ["10", "20", "30", "30"]


values = st.sampled_from([None, "x", "y"])


@settings(max_examples=25)  # a frame each
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), *[values] * 5), unique=True, max_size=12))
def test_names_are_unique_in_a_group_and_no_row_is_lost(chosen):
    columns = ("strategy", "options", "environment", "feed", "device_ids", "prefetch")
    base = dict.fromkeys(FRAME_COLUMNS) | {"status": "ok", "throughput_samples_per_s": 1.0, "scaling": "weak"}
    base |= dict.fromkeys(("model", "dataset", "hardware"), "m") | {"batch_per_device": 1}
    rows = [{**base, **dict(zip(columns, one, strict=True)), "gpus": n} for one in chosen for n in (2, 1)]
    curves = scaling_curves.make_curves(make_frame(rows, [*FRAME_COLUMNS, "repeats"]))
    assert len({one.name for one in curves}) == len(curves) == len(chosen)
    assert set(columns) <= set(CURVE_COLUMNS)
    assert sorted(itertools.chain(*(one.gpus for one in curves))) == sorted([1, 2] * len(chosen))


def test_two_machines_of_one_hardware_are_separate_groups():
    """hardware=local on two computers."""
    own_curves = several(["bare_torch", "ddp_gloo"], (1, 2))
    other = sweeps.run("ddp_gloo", 2, machine=dataclasses.replace(MACHINE, cpu_model="another"), run_id="other")
    first, second = scaling_curves.group_curves(scaling_curves.make_curves(pooled(*own_curves, other)))
    assert scaling_curves.format_group_title(first[0]).endswith(
        "machine (cpu a processor, 2 cores, about 8 GiB, no GPU)"
    )
    assert "machine (cpu another, " in scaling_curves.format_group_title(second[0])
    assert [curve.gpus for curve in second[1]] == [[2]]
    assert "machine" not in scaling_curves.format_group_title(
        scaling_curves.group_curves(scaling_curves.make_curves(pooled(*own_curves)))[0][0]
    )


def curve(speedups, nodes=None, width=0.01, against="bare"):
    """Return a curve with these speedups; `nodes` devices fill a node; limits over repeats differ by `width`."""
    rows = []
    for gpus, value in speedups.items():
        row = {"gpus": gpus, "run_id": f"{gpus}", f"baseline_{against}_id": "0", "repeats": 3, "flags": None}
        row |= {"interval_over": None if width is None else "repeats"}
        row["nodes"] = 1 if nodes is None else math.ceil(gpus / nodes)
        rate = row["throughput_samples_per_s"] = None if value is None else 100 * value
        row[f"speedup_{against}"], row[f"efficiency_{against}"] = value, value and value / gpus
        for name, figure in ((f"speedup_{against}", value), (f"efficiency_{against}", value and value / gpus),
                             ("throughput", rate)):  # fmt: skip
            for end, sign in (("low", -1), ("high", 1)):
                row[f"{name}_{end}"] = None if figure is None or width is None else figure * (1 + sign * width)
        rows.append(row)
    return scaling_curves.Curve("ddp", {}, {}, rows)


def test_the_limits_of_a_slope_follow_from_those_of_the_speedups():
    """Factors of the speedups on 1, 2 and 4 devices are those counts less their mean, 7/3, over 14/3."""
    made = scaling_curves.fit_slope(curve({1: 0.9, 2: 1.7, 4: 2.8}, width=0.02))
    distances = [factor * 0.02 * y for factor, y in zip((-2 / 7, -1 / 14, 5 / 14), (0.9, 1.7, 2.8), strict=True)]
    independent = math.hypot(*distances)
    common = math.sqrt(0.5 * independent**2 + 0.5 * sum(distances) ** 2)
    assert made.speedup.value == pytest.approx((-2 * 0.9 - 0.5 * 1.7 + 2.5 * 2.8) / 7)
    assert made.speedup.high - made.speedup.value == pytest.approx(max(independent, common))
    assert made.worst == pytest.approx(abs(0.9 - made.intercept - made.speedup.value) / 0.9)
    own = curve({1: 1.0, 2: 1.7, 4: 2.8}, width=0.02, against="self")
    own.rows[0]["baseline_self_id"] = own.rows[0]["run_id"]
    assert (
        scaling_curves.fit_slope(own, "self").speedup.high
        < scaling_curves.fit_slope(curve({1: 1.0, 2: 1.7, 4: 2.8}, width=0.02)).speedup.high
    ), "1 exactly"


def test_a_slope_has_no_limits_unless_those_of_all_rows_hold_over_repeats():
    for change in ({"interval_over": "blocks"}, {"flags": "busy_machine"}, {"flags": "drifts oversubscribed"}):
        made = curve({1: 0.9, 2: 1.7, 4: 2.8})
        made.rows[1] |= change
        assert scaling_curves.fit_slope(made).speedup.limits == (None, None)
    made.rows[1]["flags"] = "drifts"
    assert scaling_curves.fit_slope(made).speedup.has_limits


counts = st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True).map(sorted)


@pytest.mark.parametrize("speedups, value, surely", [
    ({1: 0.95, 2: 1.8, 4: 3.0}, 2, 2),
    ({1: 0.95, 2: 1.605, 4: 3.3}, 4, 1),  # 0.8025 at 2: by its figure only
    ({1: 0.95, 2: 1.5, 4: 3.5}, 1, 1),  # good again beyond a bad one
    ({1: 0.7, 2: 1.2}, None, None),
    ({1: 0.95, 2: None, 4: 3.5}, 1, 1),
    ({2: None}, None, None),
])  # fmt: skip
def test_how_many_devices_keep_an_efficiency(speedups, value, surely):
    measured = max((gpus for gpus, speedup in speedups.items() if speedup is not None), default=None)
    assert scaling_curves.find_scaling_limit(curve(speedups), 0.8) == scaling_curves.ScalingLimit(
        0.8, value, surely, measured
    )


@pytest.mark.parametrize("wanted", [0.0, -1.0, math.nan])
def test_a_wanted_efficiency_is_a_share(wanted):
    with pytest.raises(ValueError, match="above 0"):
        scaling_curves.find_scaling_limit(curve({1: 1.0}), wanted)
