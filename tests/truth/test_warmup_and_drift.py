"""A warm-up that was slept against the one that is found, and what a long one or a drift does to whole sessions."""

import pytest

from scalebench.analysis import throughput
from scalebench.runner.parent import run_spec as run_processes
from tests.builders.runs import in_parallel, simulated_spec
from tests.truth.simulated_group import Times, run, spec_of, truths, white

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS, OFTEN = 50, 0.95
STEP_S = Times().step_s
SLEEPING = "tests.truth.sleeping_worker"


def near(actual, length):
    """Within one block, which warm-up has of single updates, or a tenth of its length."""
    return actual is not None and abs(actual - length) <= max(1, length // 10)


def measured(times, seed):
    return run(spec_of(2, probes=False, max_s=5.0), times, white(), 50_000, seed)


def test_a_warm_up_that_nothing_tells_beforehand_is_left_out_on_loading():
    """As long as it stays the same it is like a steady state; when it ends within the measured blocks, these tell."""
    times = Times(warmup_s=(5 * STEP_S,) * 100)
    truth = truths(times, white(), 2)["throughput"]
    intervals = [throughput.Measurement(measured(times, seed)).throughput for seed in range(2 * TRIALS)]
    held = sum(actual is not None and actual.has_limits and actual.low <= truth <= actual.high for actual in intervals)
    print(f"\nwarm-up left in the measured blocks: throughput holds the truth in {held} of {2 * TRIALS}")
    assert held >= 0.9 * 2 * TRIALS


def unsteady(times, seed):
    return throughput.Measurement(measured(times, seed)).list_flags()


def test_a_drift_is_flagged_and_none_is_not():
    drifting = sum("drifts" in unsteady(Times(drift=0.3), seed) for seed in range(TRIALS))
    false = sum(bool(unsteady(Times(), seed)) for seed in range(4 * TRIALS))
    print(f"\ndrift: flagged in {drifting} of {TRIALS}; without any in {false} of {4 * TRIALS}")
    assert drifting >= OFTEN * TRIALS
    assert false <= 0.05 * 4 * TRIALS


def test_a_warm_up_that_was_slept_is_found(tmp_path):
    """With real processes, in noise beside which what the machine's other work does to a sleep is small."""

    def slept(length):
        options = {"step_s": 0.02, "warmup_s": 0.2, "warmup_steps": length}
        measure = {"warmup_steps": 50, "warmup_max_s": 30.0, "target": 0.05}
        return run_processes(simulated_spec(1, options, measure), tmp_path / str(length), module=SLEEPING)

    results = in_parallel(slept, (0, 1, 5, 20), at_once=2)
    actual = {length: result.ranks[0].steady_after_steps for length, result in results.items()}
    print(f"\nslept: {actual}")
    assert all(near(steps, length) for length, steps in actual.items()), actual
