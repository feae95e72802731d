"""Every figure against its known truth: how often the 95 % interval holds it, in whole sessions on an injected clock.

Each trial is a run of its own seed: warm-up, the stopping rule with its looks, and all probes, with the settings of
conf/measure/default.yaml, on the sessions of all ranks; the figures are those of the record that they leave.
"""

from collections import Counter

import numpy as np
import pytest

from scalebench.analysis import step_breakdown, throughput
from tests.truth.simulated_group import (
    Times,
    autoregressive,
    contains,
    lognormal,
    run,
    spec_of,
    spikes,
    truths,
    white,
)

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS, LEAST = 1000, 930
UPDATES = 50_000  # more than a run can have
QUICK, SLOW = Times(), Times(step_s=0.05, loading_s=0.01, sync_s=0.02, straggler_s=0.025, copy_s=0.01)


def figure(result, name):
    return throughput.throughput(result)[1] if name == "throughput" else step_breakdown.BREAKDOWN_FIGURES[name](result)


def coverage(ranks, noise, times, trials=TRIALS):
    """(trials that hold the truth, mean half-width over the truth) by figure; and how often a row is flagged."""
    spec = spec_of(ranks)
    reference = truths(times, noise, ranks)
    held, widths, flags = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(trials):
        result = run(spec, times, noise, UPDATES, seed)
        flags.update(throughput.find_drift(result, spec.config.measure.target) or [])
        for name, truth in reference.items():
            actual = figure(result, name)
            held[name] += contains(actual, truth)
            widths[name] += 0.0 if actual is None else (actual.high - actual.low) / 2 / truth
    return held, {name: total / trials for name, total in widths.items()}, flags


def told(case, held, widths, flags):
    summaries = [f"{name} {held[name] / TRIALS:.3f} (+-{100 * widths[name]:.2g} %)" for name in held]
    print(f"\n{case}: {', '.join(summaries)}; flagged {dict(flags)}")


@pytest.mark.parametrize(
    ("case", "ranks", "noise"),
    [
        ("white, 1 rank", 1, white()),
        ("white, 2 ranks", 2, white()),
        ("lognormal, 3 ranks", 3, lognormal()),
        ("spikes, 2 ranks", 2, spikes()),
        ("AR(1) 0.5, 3 ranks", 3, autoregressive(0.5)),
        ("AR(1) 0.8, 2 ranks", 2, autoregressive(0.8)),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_every_figure_lies_in_its_interval(case, ranks, noise):
    """In at least 930 of 1,000 trials; many updates to a block."""
    held, widths, flags = coverage(ranks, noise, QUICK)
    told(case, held, widths, flags)
    assert len(held) == (6 if ranks == 1 else 9)
    assert min(held.values()) >= LEAST, held
    assert max(flags.values(), default=0) <= 0.1 * TRIALS, "series without drift or warm-up pass for steady"


@pytest.mark.parametrize(("correlation", "ranks"), [(0.5, 3), (0.8, 2)])
def test_throughput_lies_in_its_interval_where_blocks_resemble_each_other(correlation, ranks):
    """One update to a block. Probes then have a dozen values, too few to tell that they are correlated."""
    held, widths, flags = coverage(ranks, autoregressive(correlation), SLOW)
    told(f"AR(1) {correlation} between blocks, {ranks} ranks", held, widths, flags)
    assert held["throughput"] >= LEAST


def test_truths_are_those_of_the_definitions():
    """Where they can be told without a simulation: no noise, one straggler."""
    still = white(0.0)
    one, three = truths(QUICK, still, 1), truths(QUICK, still, 3)
    update_s = QUICK.step_s + QUICK.straggler_s + QUICK.loading_s + QUICK.sync_s
    mean_s = QUICK.step_s + QUICK.straggler_s / 3
    expected = {
        "throughput": 30 / update_s, "data_s": QUICK.loading_s, "copy_s": QUICK.copy_s,
        "forward_s": 0.3 * mean_s, "backward_s": 0.5 * mean_s, "optimizer_s": 0.2 * mean_s,
        "sync_isolated_s": QUICK.sync_s, "imbalance_s": 2 / 3 * QUICK.straggler_s,
        "sync_exposed_s": QUICK.sync_s + 2 / 3 * QUICK.straggler_s,  # two of three wait for the straggler
    }  # fmt: skip
    assert three == pytest.approx(expected)
    assert one["throughput"] == pytest.approx(10 / (QUICK.step_s + QUICK.loading_s))
    assert np.isfinite(list(one.values())).all() and "sync_exposed_s" not in one
