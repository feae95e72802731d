"""Trainings of real processes with a known course, against what it must come to."""

import math

import pytest

import scalebench
from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.core.stats.estimates import Estimate
from scalebench.runner.parent import run_spec
from tests.builders.runs import in_parallel, simulated_spec

pytestmark = [pytest.mark.truth, pytest.mark.slow]

RATE, TARGET, BATCH, SIZE = 0.02, 0.3, 50, 2000  # of the data set 1,500 are trained: whole batches
STEP_S = 0.004
# exp(-RATE n) is as good as TARGET from 61 updates on; an epoch has 30 on one device and 15 on two.
EPOCHS = {1: 3, 2: 5}
UPDATES = {1: 90, 2: 75}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainings")

    def one(case):
        gpus, seed = case
        train = TrainSpec(batch_per_device=BATCH, stop=StopSpec(epochs=9.0, target=TARGET))
        spec = simulated_spec(gpus, {"learning": RATE, "step_s": STEP_S}, size=SIZE, train=train, seed=seed)
        return run_spec(spec, folder / f"{gpus}-{seed}").status

    cases = [(gpus, seed) for gpus in (1, 2) for seed in range(3)]
    assert set(in_parallel(one, cases, at_once=1).values()) == {"ok"}
    return folder, {one.first_run["gpus"]: one for one in summarize_trainings(scalebench.load(folder))}


def test_epochs_metric_and_gap_are_those_of_the_course(found):
    for gpus, one in found[1].items():
        assert (one.seeds, one.reached, one.stopped_by) == (3, 3, ["target"])
        last = math.exp(-RATE * UPDATES[gpus])
        expected = {"epochs_to_target": EPOCHS[gpus], "metric": last, "generalisation_gap": last / 2}
        assert {name: one.figures[name].value for name in expected} == pytest.approx(expected)


def test_seconds_are_of_all_updates_but_the_first(found):
    for gpus, one in found[1].items():
        interval = one.figures["time_to_target_s"]
        seconds = interval.value
        assert seconds >= (UPDATES[gpus] - 1) * STEP_S and interval.has_limits
        assert seconds == one.figures["trained_s"].value


def test_the_speedup_is_that_of_updates_and_not_of_samples(found):
    """Two devices see twice the samples in an update that takes as long, and need 5 epochs for 3."""
    one, two = found[1][1], found[1][2]
    assert one.figures["speedup_target_bare"] == Estimate(1.0)
    interval = two.figures["speedup_target_bare"]
    speedup = interval.value
    seconds = [found[1][gpus].figures["time_to_target_s"].value for gpus in (1, 2)]
    assert speedup == pytest.approx(seconds[0] / seconds[1]) and interval.has_limits
    assert speedup is not None and speedup < 1.75  # 90 updates for 75; twice the samples a second are no match for it
