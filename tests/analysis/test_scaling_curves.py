"""Curves over devices: what belongs together is together, what may not be mixed is apart, names tell them apart."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.analysis import load as frames
from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.identity import CURVE_COLUMNS
from scalebench.analysis.repeats import pool_results
from scalebench.analysis.scaling_curves import Curve, format_group_title, group_curves, make_curves, plain_row
from scalebench.core.result import Result
from scalebench.core.spec import StrategySpec, TrainSpec
from tests.builders import sweeps
from tests.builders.runs import MACHINE


def pooled(*results: Result) -> pd.DataFrame:
    return pool_results(list(results), [Path("run")] * len(results))


def several(strategies: list[str], gpus: tuple[int, ...] = (1, 2, 4), **changes: Any) -> list[Result]:
    return [sweeps.run(name, count, **changes) for name in strategies for count in gpus]


def named(found: list[Curve]) -> dict[str, list[int]]:
    return {curve.name: curve.gpus for curve in found}


def with_options(name: str, gpus: int, **options: Any) -> Result:
    result = sweeps.run(name, gpus, run_id=f"{name}-{gpus}-{options}", fingerprint=f"{name}-{gpus}-{options}")
    chosen = dataclasses.asdict(StrategySpec(name, framework="torch", baseline="bare_torch", options=options))
    return dataclasses.replace(result, spec={**result.spec, "strategy": chosen})


def test_a_sweep_has_a_curve_for_each_strategy_and_the_bare_row_is_one_of_one_point() -> None:
    frame = pooled(sweeps.run("bare_torch", 1), *several(["ddp_gloo", "horovod_gloo"], (4, 1, 2)))
    found = make_curves(frame)
    assert named(found) == {"bare_torch": [1], "ddp_gloo": [1, 2, 4], "horovod_gloo": [1, 2, 4]}
    assert [one.tags["strategy"] for one in found] == ["bare_torch", "ddp_gloo", "horovod_gloo"]
    group = {"model": "materials_cnn", "dataset": "materials", "hardware": "cpu", "scaling": "weak"}
    assert group_curves(found) == [({**group, "batch": "10 per device"}, found)]
    assert (
        format_group_title(found[0].group)
        == "materials_cnn on materials, hardware cpu, weak scaling, batch 10 per device"
    )


def test_figures_are_the_frames_own_and_null_is_none() -> None:
    frame = pooled(*several(["ddp_gloo"]))
    (curve,) = make_curves(frame)
    for cells_of, (_, row) in zip(curve.rows, frame.iterrows(), strict=True):
        assert list(cells_of) == list(frame.columns)
        assert all(value == row[name] if value is not None else pd.isna(row[name]) for name, value in cells_of.items())
        assert type(cells_of["gpus"]) is int and type(cells_of["throughput_samples_per_s"]) is float
        assert cells_of["reason"] is None and cells_of == plain_row(row)


def test_weak_and_strong_scaling_batches_and_hardware_are_never_one_curve() -> None:
    weak = several(["ddp_gloo"])
    strong = [sweeps.run("ddp_gloo", count, run_id=f"s{count}", **sweeps.strong(40, count)) for count in (1, 2, 4)]
    strong = [_scaled(run, 40 // run.scale.gpus, 40) for run in strong]
    bigger = [_scaled(sweeps.run("ddp_gloo", n, run_id=f"b{n}", train=TrainSpec(20)), 20, 20 * n) for n in (1, 2)]
    away = dataclasses.replace(weak[0], run_id="a", fingerprint="a")
    away = dataclasses.replace(away, scale=dataclasses.replace(away.scale, hardware="alpha"))
    parts = group_curves(make_curves(pooled(*weak, *strong, *bigger, away)))
    told = [(group["scaling"], group["batch"], group["hardware"], one[0].gpus) for group, one in parts]
    assert told == [
        ("weak", "10 per device", "cpu", [1, 2, 4]), ("strong", "40 in all", "cpu", [1, 2, 4]),
        ("weak", "20 per device", "cpu", [1, 2]), ("weak", "10 per device", "alpha", [1]),
    ]  # fmt: skip


def _scaled(result: Result, per_device: int, in_all: int) -> Result:
    scale = dataclasses.replace(result.scale, batch_per_device=per_device, global_batch=in_all)
    return dataclasses.replace(result, scale=scale)


def test_options_are_told_where_a_strategy_has_several() -> None:
    both = [with_options("ddp_gloo", gpus, **options) for gpus in (1, 2) for options in ({}, {"bucket_cap_mb": 1})]
    alone = [with_options("horovod_gloo", gpus, fp16_allreduce=True) for gpus in (1, 2)]
    found = named(make_curves(pooled(*both, *alone)))
    assert found == {"ddp_gloo": [1, 2], "ddp_gloo bucket_cap_mb=1": [1, 2], "horovod_gloo": [1, 2]}


def test_only_the_options_that_differ_are_told() -> None:
    frame = pooled(*several(["ddp_gloo"], (1, 2)))
    other = frame.assign(options="bucket_cap_mb=1 find_unused_parameters=True")
    both = pd.concat([frame.assign(options="find_unused_parameters=True"), other])
    assert named(make_curves(both)) == {"ddp_gloo": [1, 2], "ddp_gloo bucket_cap_mb=1": [1, 2]}


def test_a_feed_that_differs_anywhere_is_told_everywhere_and_a_format_only_where_a_strategy_has_two() -> None:
    frame = pooled(*several(["ddp_gloo", "mirrored"], (1, 2)))
    frame.loc[frame["strategy"] == "mirrored", ["feed", "data_format"]] = ["device", "nchw"]
    assert list(named(make_curves(frame))) == ["ddp_gloo feed=host", "mirrored feed=device"]
    both = pd.concat([frame[frame["strategy"] == "ddp_gloo"].assign(data_format=name) for name in ("nhwc", "nchw")])
    assert list(named(make_curves(both))) == ["ddp_gloo data_format=nhwc", "ddp_gloo data_format=nchw"]


def test_a_row_without_a_binding_ran_with_the_usual_one() -> None:
    frame = pooled(*several(["ddp_gloo"], (1, 2)))
    frame.loc[frame["gpus"] == 2, "bind"] = "numa"
    frame.loc[frame["gpus"] == 1, "bind"] = pd.NA
    assert named(make_curves(frame)) == {"ddp_gloo": [1, 2]}


def test_models_of_one_name_and_several_sizes_are_apart() -> None:
    frame = pooled(*several(["ddp_gloo"], (1, 2)))
    both = pd.concat([frame, frame.assign(model_params=2_000_000)])
    parts = group_curves(make_curves(both))
    assert [group["parameters"] for group, _ in parts] == ["153,441", "2,000,000"]
    assert format_group_title(parts[1][0]).endswith("batch 10 per device, parameters 2,000,000")
    assert [list(named(members)) for _, members in parts] == [["ddp_gloo"], ["ddp_gloo"]]


def test_what_no_column_tells_apart_is_dealt_by_baseline_and_else_in_order() -> None:
    frame = pooled(*several(["ddp_gloo"], (1, 2)))
    other = frame.assign(baseline_self_id="other", throughput_samples_per_s=7.0)
    mixed = pd.concat([other.iloc[[1]], frame, other.iloc[[0]]])
    first, second = make_curves(mixed)
    assert (first.name, second.name) == ("ddp_gloo", "ddp_gloo #2")
    assert [row["throughput_samples_per_s"] for row in first.rows] == [7.0, 7.0]
    lost = pd.concat([frame, frame.iloc[[1]]]).assign(baseline_self_id=pd.NA)
    assert named(make_curves(lost)) == {"ddp_gloo": [1, 2], "ddp_gloo #2": [2]}


def test_what_was_not_measured_is_no_point() -> None:
    frame = pooled(sweeps.failed(), sweeps.run("ddp_gloo", 2))
    assert named(make_curves(frame)) == {"ddp_gloo": [2]}
    assert make_curves(pooled(sweeps.failed())) == [] and group_curves([]) == []
    assert make_curves(make_frame([], [*FRAME_COLUMNS, "repeats"])) == []
    frame = pooled(*several(["ddp_gloo"], (1, 2, 4)))
    frame.loc[frame["gpus"] == 1, "status"] = "cancelled"
    frame.loc[frame["gpus"] == 4, "throughput_samples_per_s"] = pd.NA
    assert named(make_curves(frame)) == {"ddp_gloo": [2]}


@pytest.mark.parametrize("given_name", ["frame", "pooled"])
def test_a_frame_of_single_runs_has_each_repeat_as_a_curve(given_name: str) -> None:
    results = [sweeps.run("ddp_gloo", gpus, repeat) for repeat in range(3) for gpus in (1, 2)]
    make = {"frame": frames.frame_of_results, "pooled": pool_results}[given_name]
    found = named(make_curves(make(results, [Path("run")] * 6)))
    assert list(found.values()) == [[1, 2]] * (3 if given_name == "frame" else 1)


values = st.sampled_from([None, "x", "y"])


@settings(max_examples=25, deadline=None)  # a frame each
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), *[values] * 5), unique=True, max_size=12))
def test_names_are_unique_in_a_group_and_no_row_is_lost(chosen: list[tuple[Any, ...]]) -> None:
    columns = ("strategy", "options", "environment", "feed", "device_ids", "prefetch")
    base = dict.fromkeys(FRAME_COLUMNS) | {"status": "ok", "throughput_samples_per_s": 1.0, "scaling": "weak"}
    base |= dict.fromkeys(("model", "dataset", "hardware"), "m") | {"batch_per_device": 1}
    rows = [{**base, **dict(zip(columns, one, strict=True)), "gpus": n} for one in chosen for n in (2, 1)]
    found = make_curves(make_frame(rows, [*FRAME_COLUMNS, "repeats"]))
    assert len({one.name for one in found}) == len(found) == len(chosen)
    assert set(columns) <= set(CURVE_COLUMNS)
    assert sorted(itertools.chain(*(one.gpus for one in found))) == sorted([1, 2] * len(chosen))


def test_two_machines_of_one_hardware_share_no_group() -> None:
    """hardware=local on two computers."""
    mine = several(["bare_torch", "ddp_gloo"], (1, 2))
    other = sweeps.run("ddp_gloo", 2, machine=dataclasses.replace(MACHINE, cpu_model="another"), run_id="other")
    first, second = group_curves(make_curves(pooled(*mine, other)))
    assert format_group_title(first[0]).endswith("machine (cpu a processor, 2 cores, about 8 GiB, no GPU)")
    assert "machine (cpu another, " in format_group_title(second[0]) and [curve.gpus for curve in second[1]] == [[2]]
    assert "machine" not in format_group_title(group_curves(make_curves(pooled(*mine)))[0][0])
