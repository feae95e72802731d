"""The ladders of a sweep as a frame."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import scalebench
from scalebench.analysis.attribution import COLUMNS, Baseline, ladders
from scalebench.analysis.attribution.components import PARTS
from scalebench.core.errors import InputError
from tests.builders import sweeps
from tests.builders.attribution_runs import alone, strong, weak


def test_a_row_for_each_part_of_each_configuration(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, repeats=3)
    found = scalebench.attribution(tmp_path)
    assert list(found.columns) == COLUMNS
    assert len(found) == 6 * len(PARTS) and set(found["strategy"]) == {"ddp_gloo", "horovod_gloo"}
    assert (found["repeats"] == 3).all() and (found["against"] == "bare").all()
    for _, rows in found.groupby("run_id"):
        assert rows["share"].sum() == pytest.approx(rows["lost"].iloc[0], abs=1e-12)
    told = found[found["part"] == "transfer"].dropna(subset=["share"])
    assert (told["share_low"] <= told["share"]).all() and (told["share"] <= told["share_high"]).all()


def test_it_stays_callable_once_its_module_is_loaded(tmp_path: Path) -> None:
    import scalebench.analysis.attribution

    sweeps.sweep(tmp_path, gpus=(1, 2))
    assert callable(scalebench.attribution) and len(scalebench.attribution([str(tmp_path)])) == 4 * len(PARTS)


def test_the_rows_are_those_of_the_pooled_frame(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, repeats=2)
    found, pooled = scalebench.attribution(tmp_path), scalebench.pooled(tmp_path).set_index("run_id")
    assert set(found["run_id"]) == set(pooled.index) - {"bare_torch-1-0"}
    assert found["share_low"].isna().all()


def test_merged_parts_and_absent_ones(tmp_path: Path) -> None:
    result, full, bare, _ = strong(probes={"local_step_s": [], "reasons": {"imbalance": "told so"}})
    sweeps.write(tmp_path, [result, full, bare])
    found = scalebench.attribution(tmp_path).set_index("part")
    assert list(found.index) == ["batch", "overhead + contention", "data", "straggler + transfer", "drift"]
    assert found.loc["straggler + transfer", "missing"] == "told so"
    assert "strategy=ddp" in found.loc["overhead + contention", "missing"]


def test_parts_that_there_cannot_be_have_a_reason_and_no_figures(tmp_path: Path) -> None:
    sweeps.write(tmp_path, list(weak()))
    found = scalebench.attribution(tmp_path)
    batch = found[(found["gpus"] == 2) & (found["part"] == "batch")].iloc[0]
    assert str(batch["share"]) == "<NA>" and "batch of a device" in batch["missing"]


def test_a_path_without_results(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        scalebench.attribution(tmp_path)


def test_nothing_to_compare_with_is_an_empty_frame(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, strategies=("ddp_gloo",), gpus=(2,))
    assert list(scalebench.attribution(tmp_path).columns) == COLUMNS and scalebench.attribution(tmp_path).empty


def test_each_launch_stands_on_the_baselines_of_its_repeat() -> None:
    first, second = weak(), weak(repeat=1)
    slow = [alone(name, step_s, repeat=1) for name, step_s in (("bare_torch", 0.02), ("ddp", 0.0205))]
    of_repeat = {one.scale.repeat: one for one in (first[0], second[0])}
    baselines = Baseline([*first, second[0], *slow])
    assert [baselines.of(of_repeat[n]).bare_full for n in (0, 1)] == [first[1], slow[0]]
    (found,) = [one for one in ladders([*first, second[0], *slow]) if one.gpus == 2]
    assert found.launches == 2 and found.ideal_s == pytest.approx(0.015)


def test_copies_of_a_run_are_one_launch() -> None:
    result, bare, own = weak()
    (_, found) = ladders([own, result, bare, result, bare])
    assert (found.run_id, found.launches) == (result.run_id, 1)


def test_baselines_may_lie_elsewhere() -> None:
    result, full, bare, own = strong()
    (found,) = ladders([result], among=[full, bare, own])
    assert [part.names for part in found.parts] == [(name,) for name in PARTS]


def test_the_launch_that_began_first_names_the_configuration() -> None:
    result, bare, own = weak()
    later = dataclasses.replace(result, run_id="later", started_at="2027-01-01T00:00:00.000+00:00")
    assert [one.run_id for one in ladders([later, result, bare]) if one.gpus == 2] == [result.run_id]
    assert own.scale.gpus == 1
