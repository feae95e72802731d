"""A programmed warm-up against the one that is found, a drift against the flag, in whole sessions."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from scalebench.analysis import throughput
from scalebench.runner.parent import run_spec as run_processes
from tests.builders.runs import in_parallel, simulated_spec
from tests.truth.simulated_group import Noise, Times, autoregressive, lognormal, run, spec_of, spikes, truths, white

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS, OFTEN = 50, 0.95
STEP_S = Times().step_s
SLEEPING = "tests.truth.sleeping_worker"
# Warm-up alone: measuring is over after its first block.
BRIEF = {"min_s": 0.0, "max_s": 0.0, "probes": False}
STANDS_OUT = 12.0  # standard deviations of the noise
FLAT = [(length, height) for length in (0, 1, 3, 10, 40, 100, 300) for height in (0.3, 5.0, 49.0)]
Of = Callable[[float], Noise]


def near(actual, length):
    """Within one block, which warm-up has of single updates, or a tenth of its length."""
    return actual is not None and abs(actual - length) <= max(1, length // 10)


def found_steps(length, height, noise, seed):
    """As the record has it, of a warm-up that stays the same until it ends; looked for where it can have ended."""
    spec = spec_of(1, warmup_steps=50 if length < 50 else 400, **BRIEF)
    times = Times(warmup_s=(height * STEP_S,) * length)
    return run(spec, times, noise, 6000, seed).ranks[0].steady_after_steps


@pytest.mark.parametrize(
    ("name", "of", "widest", "heights"),
    [
        ("white", white, 0.1, (0.3, 5.0, 49.0)),
        ("lognormal", lognormal, 0.15, (0.3, 5.0, 49.0)),
        ("AR(1) 0.5", partial(autoregressive, 0.5), 0.1, (0.3, 5.0, 49.0)),
        ("AR(1) 0.8", partial(autoregressive, 0.8), 0.1, (0.3, 5.0, 49.0)),
        ("spikes", spikes, 0.01, (5.0, 49.0)),  # their own standard deviation is 0.4
    ],
    ids=["white", "lognormal", "ar5", "ar8", "spikes"],
)
def test_a_warm_up_that_ends_at_once_is_found(name, of, widest, heights):
    shares = {}
    for length, height in FLAT:
        if height in heights:
            noise = of(min(widest, height / STANDS_OUT))
            seeds = range(first := 1000 * length + int(height), first + TRIALS)
            hits = [near(found_steps(length, height, noise, seed), length) for seed in seeds]
            shares[length, height] = float(np.mean(hits))
    together = float(np.mean(list(shares.values())))
    worst = min(shares, key=lambda case: shares[case])
    print(f"\n{name}: found in {together:.3f} of {TRIALS * len(shares)}; least {shares[worst]:.2f} at {worst}")
    assert together >= OFTEN
    assert shares[worst] >= 0.85, shares  # of so few trials


@pytest.mark.parametrize("fall", [3.0, 20.0, 100.0], ids=lambda fall: f"{fall:g}_updates")
def test_a_warm_up_that_decays_ends_where_it_sinks_into_the_noise(fall):
    """By e in `fall` updates. What is left is less than six standard deviations of the noise, and not nothing."""
    width, spec = 0.05, spec_of(1, **BRIEF)
    times = Times(warmup_s=tuple(2 * STEP_S * np.exp(-np.arange(2000) / fall)))
    founds = [run(spec, times, white(width), 6000, seed).ranks[0].steady_after_steps for seed in range(TRIALS)]
    left = [2 * np.exp(-actual / fall) / width for actual in founds if actual is not None]
    print(f"\ndecay by e in {fall:g}: {len(left)} of {TRIALS}, left {min(left):.2f} to {max(left):.2f} deviations")
    assert all(0.01 <= each <= 6 * np.exp(2 / fall) for each in left)
    assert len(left) >= 0.85 * TRIALS, "the tail of a slow decay may pass for a drift until the bounds are reached"


def measured(times, seed):
    return run(spec_of(2, probes=False, max_s=5.0), times, white(), 50_000, seed)


def test_a_warm_up_that_nothing_tells_beforehand_is_left_out_on_loading():
    """As long as it stays the same it is like a steady state; when it ends within the measured blocks, these tell."""
    times = Times(warmup_s=(5 * STEP_S,) * 100)
    truth = truths(times, white(), 2)["throughput"]
    intervals = [throughput.Measurement(measured(times, seed)).throughput[1] for seed in range(2 * TRIALS)]
    held = sum(actual is not None and actual.low <= truth <= actual.high for actual in intervals)
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


def test_where_no_steady_state_comes_none_is_found():
    """Null, and nothing wrong, where each update takes longer than the one before."""
    spec = spec_of(1, warmup_max_steps=400, **BRIEF)
    founds = [run(spec, Times(drift=30.0), white(), 6000, seed).ranks[0].steady_after_steps for seed in range(TRIALS)]
    assert founds == [None] * TRIALS


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
