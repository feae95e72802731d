"""Whole runs of real processes, which sleep as the simulated strategy does, against what they really slept."""

import math
from functools import partial

import numpy as np
import pytest

import scalebench
from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.core.stats.estimates import Estimate
from scalebench.runner.parent import run_spec
from tests.builders.runs import in_parallel, simulated_spec
from tests.truth.simulated_group import UNTIL, contains
from tests.truth.sleeping_worker import SYNC_S, Slept
from tests.truth.test_coverage import figure

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS = 20
# Of 20 intervals at 95 %, fewer than 17 hold the truth once in sixty times (binomial).
MIN_COVERED = 17
BATCH, DEVICES, SIZE = 10, 2, 80  # samples per device; in the data set, of which 60 are trained: complete batches
STRAGGLER_S = 0.020
GROUP = {
    "step_s": 0.044, "loading_s": 0.014, "copy_s": 0.008, "straggler_rank": 1, "straggler_s": STRAGGLER_S,
    "sync_s": SYNC_S, "message_bytes": 1000,
}  # fmt: skip
MEASURE = {
    "warmup_steps": 16, "warmup_max_s": 2.0, "block_s": 0.05, "min_s": 1.0, "max_s": 12.0, "target": 0.05,
    "probe_s": 4.0, "evaluate": False, "probes": True,
}  # fmt: skip
MAX_DEVIATION = 0.03  # of a step: how far the trials may be off, since the harness takes time beside the sleeps


def run_trial(folder, trial):
    train = TrainSpec(global_batch=BATCH * DEVICES)
    spec = simulated_spec(DEVICES, GROUP, MEASURE, seed=trial, size=SIZE, scaling="strong", train=train)
    return run_spec(spec, folder / f"group{trial}", module="tests.truth.sleeping_worker")


def sleep_of_group(slept, *nominal_s):
    """Shape (ranks, steps); one duration for both ranks, or one for each."""
    return np.array([slept("group", rank, nominal_s[rank % len(nominal_s)]) for rank in range(DEVICES)])


def draw_truths(slept):
    """Return each figure, and the seconds of a step."""
    both, own_s = partial(sleep_of_group, slept), (GROUP["step_s"], GROUP["step_s"] + STRAGGLER_S)
    own = both(*own_s)
    alone = own + both(GROUP["loading_s"])
    together_s, sync_s = alone.max(axis=0).mean(), slept("group", 0, SYNC_S).mean()  # common to both
    forward_s, backward_s, complete_s = (both(*(share * each for each in own_s)).mean() for share in UNTIL.values())
    figures = {
        "throughput": DEVICES * BATCH / (together_s + sync_s),
        "sync_isolated_s": sync_s,
        "sync_exposed_s": together_s + sync_s - alone.mean(),
        "imbalance_s": together_s - alone.mean(),
        "data_s": alone.mean() - own.mean(),
        "copy_s": both(GROUP["copy_s"]).mean(),
        "forward_s": forward_s,
        "backward_s": backward_s - forward_s,
        "optimizer_s": complete_s - backward_s,
    }
    return figures, float(together_s + sync_s)


def test_what_was_slept_lies_in_the_intervals(tmp_path):
    results = list(in_parallel(partial(run_trial, tmp_path), range(TRIALS), at_once=3).values())
    assert [result.reason for result in results if result.status != "ok"] == []
    figures, step_s = draw_truths(Slept(tmp_path, TRIALS))
    held, off = {}, {}
    for name, truth in figures.items():
        intervals = [figure(each, name) for each in results]
        held[name] = sum(contains(each, truth) for each in intervals)
        deviation = float(np.mean([each.value for each in intervals])) - truth
        off[name] = deviation / (truth if name == "throughput" else step_s)
    print(f"\nheld of {TRIALS}: {held}; means off by: {off}")
    assert min(held.values()) >= MIN_COVERED, held
    assert max(map(abs, off.values())) < MAX_DEVIATION, off


RATE, TARGET, TRAIN_BATCH, TRAIN_SIZE = 0.02, 0.3, 50, 2000  # of the data set 1,500 are trained: whole batches
STEP_S = 0.004
# exp(-RATE n) is as good as TARGET from 61 updates on; an epoch has 30 on one device and 15 on two.
EPOCHS, UPDATES = {1: 3, 2: 5}, {1: 90, 2: 75}


def test_trainings_have_their_known_course(tmp_path):
    """Two devices see twice the samples in an update that takes as long, and need 5 epochs for 3."""

    def train(case):
        gpus, seed = case
        settings = TrainSpec(batch_per_device=TRAIN_BATCH, stop=StopSpec(epochs=9.0, target=TARGET))
        options = {"learning": RATE, "step_s": STEP_S}
        spec = simulated_spec(gpus, options, size=TRAIN_SIZE, train=settings, seed=seed)
        return run_spec(spec, tmp_path / f"{gpus}-{seed}").status

    cases = [(gpus, seed) for gpus in (1, 2) for seed in range(3)]
    assert set(in_parallel(train, cases, at_once=1).values()) == {"ok"}
    outcomes = {one.first_run["gpus"]: one for one in summarize_trainings(scalebench.load(tmp_path))}
    for gpus, one in outcomes.items():
        assert (one.seeds, one.reached, one.stopped_by) == (3, 3, ["target"])
        last = math.exp(-RATE * UPDATES[gpus])
        expected = {"epochs_to_target": EPOCHS[gpus], "metric": last, "generalisation_gap": last / 2}
        assert {name: one.figures[name].value for name in expected} == pytest.approx(expected)
        interval = one.figures["time_to_target_s"]  # of all updates but the first
        assert interval.value >= (UPDATES[gpus] - 1) * STEP_S and interval.has_limits
        assert interval.value == one.figures["trained_s"].value
    seconds = [outcomes[gpus].figures["time_to_target_s"].value for gpus in (1, 2)]
    speedup = outcomes[2].figures["speedup_target_bare"]
    assert outcomes[1].figures["speedup_target_bare"] == Estimate(1.0)
    assert speedup.value == pytest.approx(seconds[0] / seconds[1]) and speedup.has_limits
    assert speedup.value < 1.75  # 90 updates for 75; twice the samples a second are no match for it
