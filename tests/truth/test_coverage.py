"""Every figure against its known truth: how often the 95 % interval holds it, in whole sessions on an injected clock.

Each trial is a run of its own seed: warm-up, the stopping rule with its looks, and all probes, with the settings of
conf/measure/default.yaml, on the sessions of all ranks; the figures are those of the record that they leave.
"""

from collections import Counter

import pytest

from scalebench.analysis import step_breakdown, throughput
from tests.truth import simulated_group as group

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS, LEAST = 1000, 930
UPDATES = 50_000  # more than a run can have
QUICK, SLOW = group.Times(), group.Times(step_s=0.05, loading_s=0.01, sync_s=0.02, straggler_s=0.025, copy_s=0.01)


def figure(result, name):
    return throughput.Measurement(result).throughput if name == "throughput" else step_breakdown.figure(result, name)


def coverage(case, ranks, noise, times, trials=TRIALS):
    """Return how many trials hold the truth, by figure, and how often a row is flagged."""
    spec = group.spec_of(ranks)
    reference = group.truths(times, noise, ranks)
    held, flags = Counter(), Counter()
    for seed in range(trials):
        result = group.run(spec, times, noise, UPDATES, seed)
        flags.update(throughput.Measurement(result).list_flags())
        for name, truth in reference.items():
            held[name] += group.contains(figure(result, name), truth)
    print(f"\n{case}: of {trials} hold the truth {dict(held)}; flagged {dict(flags)}")
    return held, flags


@pytest.mark.parametrize(("case", "ranks", "noise"), [
    ("white, 1 rank", 1, group.white()),
    ("white, 2 ranks", 2, group.white()),
    ("lognormal, 3 ranks", 3, group.lognormal()),
    ("spikes, 2 ranks", 2, group.spikes()),
    ("AR(1) 0.5, 3 ranks", 3, group.autoregressive(0.5)),
    ("AR(1) 0.8, 2 ranks", 2, group.autoregressive(0.8)),
], ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "")  # fmt: skip
def test_every_figure_lies_in_its_interval(case, ranks, noise):
    """In at least 930 of 1,000 trials; many updates to a block."""
    held, flags = coverage(case, ranks, noise, QUICK)
    assert len(held) == (6 if ranks == 1 else 9)
    assert min(held.values()) >= LEAST, held
    assert max(flags.values(), default=0) <= 0.1 * TRIALS, "series without drift or warm-up pass for steady"


@pytest.mark.parametrize(("correlation", "ranks"), [(0.5, 3), (0.8, 2)])
def test_throughput_lies_in_its_interval_where_blocks_resemble_each_other(correlation, ranks):
    """One update to a block. Probes then have a dozen values, too few to tell that they are correlated."""
    held, _ = coverage(f"AR(1) {correlation}, {ranks} ranks", ranks, group.autoregressive(correlation), SLOW)
    assert held["throughput"] >= LEAST
