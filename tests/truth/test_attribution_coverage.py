"""Parts of the lost efficiency against their known truth: how often the 95 % interval holds it.

Each trial is a sweep in strong scaling on an injected clock: bare at the full and at the local batch, the strategy
alone, and a group of it, each a whole session with the settings of conf/measure/default.yaml.
"""

from __future__ import annotations

import pytest

from scalebench.analysis.attribution.components import LOSS_PARTS
from tests.truth.attribution_trials import BARE, FULL, GROUP, SELF, describe_coverage, measure_coverage, true_parts
from tests.truth.simulated_group import Noise, autoregressive, lognormal, white

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS, LEAST = 1000, 930


@pytest.mark.parametrize(
    ("case", "ranks", "noise"),
    [
        ("white, 2 ranks", 2, white()),
        ("lognormal, 3 ranks", 3, lognormal()),
        ("AR(1) 0.5, 2 ranks", 2, autoregressive(0.5)),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_every_part_lies_in_its_interval(case: str, ranks: int, noise: Noise) -> None:
    """Its seconds, its share, and all that is lost, in at least 930 of 1,000 trials."""
    held, widths = measure_coverage(ranks, noise, TRIALS)
    print(f"\n{describe_coverage(case, TRIALS, held, widths)}")
    assert set(widths) == {*LOSS_PARTS, "lost"} and len(held) == 2 * len(LOSS_PARTS) + 1
    assert min(held.values()) >= LEAST, held


def test_truths_are_those_of_the_definitions() -> None:
    """Where they can be told without a simulation: no noise, one straggler of three."""
    actual, update_s = true_parts(3, white(0.0), 4)
    alone_s = {name: times.step_s + times.loading_s for name, times in (("full", FULL), ("bare", BARE), ("own", SELF))}
    assert update_s == pytest.approx(GROUP.step_s + GROUP.straggler_s + GROUP.loading_s + GROUP.sync_s)
    assert actual == pytest.approx(
        {
            "batch": alone_s["bare"] - alone_s["full"] / 3,
            "overhead": SELF.step_s - BARE.step_s,
            "contention": GROUP.step_s - SELF.step_s,
            "data": GROUP.loading_s - SELF.loading_s,
            "imbalance": GROUP.straggler_s,
            "transfer": GROUP.sync_s,
            "drift": 0.0,
        },
        abs=1e-12,
    )
