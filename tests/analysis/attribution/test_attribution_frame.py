"""The attributions of a sweep as a frame."""

import dataclasses

import pytest

import scalebench
from scalebench.analysis.attribution import ATTRIBUTION_COLUMNS, attribute_runs
from scalebench.analysis.attribution.components import LOSS_PARTS
from scalebench.analysis.attribution.reference_runs import ReferenceRunFinder
from scalebench.core.errors import InputError
from tests.builders import sweeps
from tests.builders.attribution_runs import one_device_run, strong_scaling_runs, weak_scaling_runs


def test_each_configuration_has_a_row_for_each_part(tmp_path):
    sweeps.sweep(tmp_path, repeats=3)
    frame = scalebench.attribution([str(tmp_path)])
    assert list(frame.columns) == ATTRIBUTION_COLUMNS
    assert len(frame) == 6 * len(LOSS_PARTS) and set(frame["strategy"]) == {"ddp_gloo", "horovod_gloo"}
    assert (frame["repeats"] == 3).all() and (frame["against"] == "bare").all()
    for _, rows in frame.groupby("run_id"):
        assert rows["share"].sum() == pytest.approx(rows["lost"].iloc[0], abs=1e-12)
    measured = frame[frame["part"] == "transfer"].dropna(subset=["share"])
    assert (measured["share_low"] <= measured["share"]).all() and (measured["share"] <= measured["share_high"]).all()


def test_its_configurations_are_those_of_the_pooled_frame(tmp_path):
    sweeps.sweep(tmp_path, repeats=2)
    frame, pooled = scalebench.attribution(tmp_path), scalebench.pooled(tmp_path).set_index("run_id")
    assert set(frame["run_id"]) == set(pooled.index) - {"bare_torch-1-0"}
    assert frame["share_low"].isna().all()


def test_a_sweep_without_baselines_is_an_empty_frame(tmp_path):
    with pytest.raises(InputError):
        scalebench.attribution(tmp_path)
    sweeps.sweep(tmp_path, strategies=("ddp_gloo",), gpus=(2,))
    frame = scalebench.attribution(tmp_path)
    assert list(frame.columns) == ATTRIBUTION_COLUMNS and frame.empty


def test_each_repeat_is_measured_against_the_baselines_of_its_repeat():
    first, second = weak_scaling_runs(), weak_scaling_runs(repeat=1)
    slow = [one_device_run(name, step_s, repeat=1) for name, step_s in (("bare_torch", 0.02), ("ddp", 0.0205))]
    results = [*first, second[0], *slow]
    finder = ReferenceRunFinder(results)
    assert [finder.find(result).bare_full for result in (first[0], second[0])] == [first[1], slow[0]]
    (run,) = [run for run in attribute_runs(results) if run.gpus == 2]
    assert run.repeats == 2 and run.ideal_s == pytest.approx(0.015)


def test_copies_of_a_run_are_one_repeat():
    result, bare, own = weak_scaling_runs()
    (_, run) = attribute_runs([own, result, bare, result, bare])
    assert (run.run_id, run.repeats) == (result.run_id, 1)


def test_baselines_at_the_local_batch_separate_all_parts():
    run = next(run for run in attribute_runs(strong_scaling_runs()) if run.gpus == 2)
    assert [part.names for part in run.parts] == [(name,) for name in LOSS_PARTS]


def test_the_repeat_that_began_first_names_the_configuration():
    result, bare, _ = weak_scaling_runs()
    later = dataclasses.replace(result, run_id="later", started_at="2027-01-01T00:00:00.000+00:00")
    assert [run.run_id for run in attribute_runs([later, result, bare]) if run.gpus == 2] == [result.run_id]
