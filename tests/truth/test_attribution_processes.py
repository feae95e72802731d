"""The attribution of real processes, which sleep as the simulated strategy does, against what they really slept.

Bare, the strategy on one device and on several are runs of the simulated strategy, whose steps, loading, sync and
straggler differ.
"""

from functools import partial

import numpy as np
import pytest

from scalebench.analysis.attribution.components import LOSS_PARTS
from scalebench.analysis.attribution.lost_efficiency import attribute_run
from scalebench.analysis.attribution.reference_runs import ReferenceRuns
from scalebench.core.spec import TrainSpec
from scalebench.runner.parent import run_spec
from tests.builders.runs import in_parallel, simulated_spec
from tests.truth.simulated_group import contains
from tests.truth.sleeping_worker import SYNC_S, Slept

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS = 20
# Of 20 intervals at 95 %, fewer than 17 hold the truth once in sixty times (binomial).
MIN_COVERED = 17
BATCH, DEVICES, SIZE = 10, 2, 80  # samples per device; in the data set, of which 60 are trained: complete batches
STRAGGLER_S = 0.020
# Run -> devices, samples, options, whether probes are needed.
RUNS = {
    "full": (1, BATCH * DEVICES, {"step_s": 0.050, "loading_s": 0.016}, False),
    "bare": (1, BATCH, {"step_s": 0.032, "loading_s": 0.008}, False),
    "self": (1, BATCH, {"step_s": 0.038, "loading_s": 0.008}, True),
    "group": (
        DEVICES, BATCH * DEVICES,
        {"step_s": 0.044, "loading_s": 0.014, "straggler_rank": 1, "straggler_s": STRAGGLER_S,
         "sync_s": SYNC_S, "message_bytes": 1000}, True,
    ),
}  # fmt: skip
MEASURE = {
    "warmup_steps": 16, "warmup_max_s": 2.0, "block_s": 0.05, "min_s": 1.0, "max_s": 8.0, "target": 0.05,
    "probe_s": 4.0, "evaluate": False,
}  # fmt: skip
COMPARING_PARTS = ("batch", "overhead", "contention")  # of processes, which one repeat gives no limits
MAX_DEVIATION = 0.03  # of a step: how far the median trial may be off, since the harness takes time beside the sleeps


def run_trial(folder, trial):
    results = {}
    for name, (devices, batch, options, probes) in RUNS.items():
        scaling, train = ("strong", TrainSpec(global_batch=batch)) if devices > 1 else ("weak", TrainSpec(batch))
        measure = {**MEASURE, "probes": probes}
        spec = simulated_spec(devices, options, measure, seed=trial, size=SIZE, scaling=scaling, train=train)
        results[name] = run_spec(spec, folder / f"{name}{trial}", module="tests.truth.sleeping_worker")
        assert results[name].status == "ok", results[name].reason
    references = ReferenceRuns(results["full"], results["bare"], results["self"])
    attribution = attribute_run(results["group"], references)
    assert attribution is not None
    return attribution


def truths(slept):
    """Return the seconds of each part and of a step."""
    options = {name: run[2] for name, run in RUNS.items()}
    alone_s = {name: float(sum(slept(name, 0, options[name][key]).mean() for key in ("step_s", "loading_s")))
               for name in ("full", "bare", "self")}  # fmt: skip
    loading_s = slept("self", 0, options["self"]["loading_s"]).mean()
    step_s = options["group"]["step_s"]
    own = np.array([slept("group", rank, step_s + STRAGGLER_S * rank) for rank in (0, 1)])
    alone = own + np.array([slept("group", rank, options["group"]["loading_s"]) for rank in (0, 1)])
    together_s, sync_s = alone.max(axis=0).mean(), slept("group", 0, SYNC_S).mean()
    actual = {
        "batch": alone_s["bare"] - alone_s["full"] / DEVICES,
        "overhead": alone_s["self"] - alone_s["bare"],
        "contention": own.mean() + loading_s - alone_s["self"],
        "data": alone.mean() - own.mean() - loading_s,
        "imbalance": together_s - alone.mean(),
        "transfer": sync_s,
        "drift": 0.0,
    }
    return {name: float(value) for name, value in actual.items()}, float(together_s + sync_s)


def test_the_intervals_contain_what_was_slept(tmp_path):
    attributions = list(in_parallel(partial(run_trial, tmp_path), range(TRIALS), at_once=4).values())
    truth, update_s = truths(Slept(tmp_path, TRIALS))
    held, off = {}, {}
    for number, name in enumerate(LOSS_PARTS):
        parts = [each.parts[number] for each in attributions]
        assert all(part.names == (name,) for part in parts)
        share = truth[name] / update_s
        off[name] = float(np.median([part.share.value for part in parts])) - share
        if name in COMPARING_PARTS:
            assert not any(part.share.has_limits for part in parts), "one repeat"
            continue
        held[name] = min(
            sum(contains(part.step_s, truth[name]) for part in parts),
            sum(contains(part.share, share) for part in parts),
        )
        print(f"{name}: {100 * share:.2f} points in {held[name]} of {TRIALS}, median off by {100 * off[name]:+.2f}")
    for each in attributions:
        assert abs(sum(part.share.value for part in each.parts) - each.lost.value) < 1e-12
    assert min(held.values()) >= MIN_COVERED, held
    assert max(map(abs, off.values())) < MAX_DEVIATION, off
