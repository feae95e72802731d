"""Whole runs of real processes, which sleep as the simulated strategy does, against what they really slept."""

from functools import partial

import numpy as np
import pytest

from scalebench.analysis import step_breakdown, throughput
from scalebench.runner.parent import run_spec
from tests.builders.runs import in_parallel, simulated_spec
from tests.truth.sleeping_worker import SYNC_S, Slept

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS = 20
# Of 20 intervals at 95 %, fewer than 17 hold the truth once in sixty times (binomial).
ENOUGH = 17
STEP_S, STRAGGLER_S, LOADING_S, COPY_S = 0.040, 0.020, 0.010, 0.008
OPTIONS = {
    "step_s": STEP_S, "straggler_rank": 1, "straggler_s": STRAGGLER_S, "loading_s": LOADING_S, "copy_s": COPY_S,
    "sync_s": SYNC_S, "message_bytes": 1000,
}  # fmt: skip
MEASURE = {
    "warmup_steps": 16, "warmup_max_s": 2.0, "block_s": 0.05, "min_s": 1.0, "max_s": 12.0, "target": 0.05,
    "probes": True, "probe_s": 4.0, "evaluate": False,
}  # fmt: skip
OWN_S = (STEP_S, STEP_S + STRAGGLER_S)
UNTIL = (0.3, 0.8, 1.0)  # of an update's own time, at the end of each part
BATCH, SIZE = 10, 80  # samples of each device; of the data set, of which 60 are trained: whole batches
NEAR = 0.03  # of an update: how far the mean of all trials may lie off, since the harness takes time beside the sleeps


def one(folder, trial):
    spec = simulated_spec(2, OPTIONS, MEASURE, seed=trial, size=SIZE)
    result = run_spec(spec, folder / f"run{trial}", module="tests.truth.sleeping_worker")
    assert result.status == "ok", result.reason
    return result


def truths(folder):
    slept = partial(Slept(folder, TRIALS), "run")

    def both(*nominal_s):
        """Shape (ranks, steps); one duration for both ranks, or one for each."""
        return np.array([slept(rank, nominal_s[rank % len(nominal_s)]) for rank in (0, 1)])

    own = both(*OWN_S)
    alone = own + both(LOADING_S)
    together_s = alone.max(axis=0).mean()
    sync_s = both(SYNC_S).mean()  # common to both
    forward_s, backward_s, whole_s = (both(*(share * own_s for own_s in OWN_S)).mean() for share in UNTIL)
    actual = {
        "throughput": 2 * BATCH / (together_s + sync_s),
        "sync_isolated_s": sync_s,
        "sync_exposed_s": together_s + sync_s - alone.mean(),
        "imbalance_s": together_s - alone.mean(),
        "data_s": alone.mean() - own.mean(),
        "copy_s": both(COPY_S).mean(),
        "forward_s": forward_s,
        "backward_s": backward_s - forward_s,
        "optimizer_s": whole_s - backward_s,
    }
    return {name: float(value) for name, value in actual.items()}


def figure(result, name):
    actual = (
        throughput.throughput(result)[1] if name == "throughput" else step_breakdown.BREAKDOWN_FIGURES[name](result)
    )
    assert actual is not None, name
    return actual


def test_what_was_slept_lies_in_the_intervals(tmp_path):
    results = in_parallel(partial(one, tmp_path), range(TRIALS), at_once=3)
    truth = truths(tmp_path)
    update_s = 2 * BATCH / truth["throughput"]
    held, off = {}, {}
    for name, value in truth.items():
        intervals = [figure(result, name) for result in results.values()]
        held[name] = sum(each.low <= value <= each.high for each in intervals)
        sync_off_s = float(np.mean([each.value for each in intervals])) - value
        off[name] = sync_off_s / (value if name == "throughput" else update_s)
        print(f"{name}: {value:.6g} in {held[name]} of {TRIALS}, mean off by {100 * off[name]:+.2f} % of an update")
    assert min(held.values()) >= ENOUGH, held
    assert max(map(abs, off.values())) < NEAR, off
