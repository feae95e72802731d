"""The attributions of a sweep as a frame, and the one-device runs that they are made with."""

import dataclasses

import pytest

import scalebench
from scalebench.analysis.attribution import ATTRIBUTION_COLUMNS, attribute_runs
from scalebench.analysis.attribution.lost_efficiency import LOSS_PARTS, ReferenceRunFinder
from scalebench.core.errors import InputError
from tests.builders import sweeps
from tests.builders.attribution_runs import one_device_run, strong_scaling_runs, two_device_run, weak_scaling_runs


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


def test_copies_of_a_run_are_one_repeat_and_the_first_names_the_configuration():
    result, bare, own = weak_scaling_runs()
    (_, run) = attribute_runs([own, result, bare, result, bare])
    assert (run.run_id, run.repeats) == (result.run_id, 1)
    later = dataclasses.replace(result, run_id="later", started_at="2027-01-01T00:00:00.000+00:00")
    assert [run.run_id for run in attribute_runs([later, result, bare]) if run.gpus == 2] == [result.run_id]


def find_local(result, *others):
    references = ReferenceRunFinder([result, *others]).find(result)
    return references.bare_local, references.self_local


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_runs_of_either_scaling_are_baselines_at_the_local_batch(scaling):
    bare, own = (one_device_run(name, 0.01, 10, scaling=scaling) for name in ("bare_torch", "ddp"))
    result, full, *_ = strong_scaling_runs()
    actual = find_local(result, full, bare, own)
    assert actual[0] is bare and actual[1] is own
    (run,) = (run for run in attribute_runs([result, full, bare, own]) if run.gpus == 2)
    assert [part.names for part in run.parts] == [(name,) for name in LOSS_PARTS]
    again = one_device_run("bare_torch", 0.01, repeat=1)
    assert find_local(two_device_run("strong", repeat=1), bare, again)[0] is again, "of the same repeat"


def other_precision():
    bare = one_device_run("bare_torch", 0.01)
    bare.spec["train"]["precision"] = "bfloat16"
    return bare


@pytest.mark.parametrize("other", [
    one_device_run("bare_torch", 0.01, 5), one_device_run("ddp", 0.01, 20), one_device_run("bare_torch", 0.01, seed=1),
    dataclasses.replace(one_device_run("ddp", 0.01), status="failed"), other_precision(),
], ids=["smaller batch", "larger batch", "seed", "failed", "precision"])  # fmt: skip
def test_runs_that_differ_in_more_are_no_baselines(other):
    assert find_local(two_device_run("strong"), other) == (None, None)
