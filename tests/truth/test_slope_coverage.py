"""Slopes of speedup over devices against their truth: how often the 95 % limits hold it.

Repeats of each number of devices differ by a share that is their own, and by one that is common to a repeat, which
cancels in speedups. The rows have the moderated limits that a sweep's have.
"""

import math

import numpy as np
import pytest

from scalebench.analysis.scaling_curves import Curve, fit_slope
from scalebench.core.stats.moderated_variance import RepeatTable

COUNTS = {"1 to 4": (1, 2, 4), "1 to 8": (1, 2, 4, 8), "each to 8": tuple(range(1, 9)), "1 to 32": (1, 2, 4, 8, 16, 32)}
COMMON_SD, TRIALS, MIN_COVERED, MAX_COVERED = 0.05, 1000, 0.92, 0.99


def straight(gpus):
    return 0.1 + 0.9 * gpus


def amdahl(gpus):
    return 1 / (0.03 + 0.97 / gpus)


def make_curve(chance, speedups, repeats, sd, against):
    """Make the curve of one sweep: `bare` is a row beside it on one device, `self` its own row on one device."""
    common = chance.normal(0, COMMON_SD, repeats)
    levels = {gpus: math.log(value) + common + chance.normal(0, sd, repeats) for gpus, value in speedups.items()}
    levels[0] = common + chance.normal(0, sd, repeats)  # one device of the bare baseline
    base = 1 if against == "self" else 0
    table = RepeatTable({gpus: dict(enumerate(each)) for gpus, each in levels.items()})
    rows = []
    for gpus in speedups:
        row = {"gpus": gpus, "run_id": str(gpus), f"baseline_{against}_id": str(base), "interval_over": "repeats"}
        ratio = table.difference(gpus, base, list(levels[gpus] - levels[base])).to_estimate()
        value, low, high = (1.0, None, None) if gpus == base else (ratio.value, ratio.low, ratio.high)
        limits = {f"speedup_{against}_low": low, f"speedup_{against}_high": high}
        rows.append({**row, "flags": None, "repeats": repeats, f"speedup_{against}": value, **limits})
    return Curve("ddp", {}, {}, rows)


def count_covered(counts, repeats, sd, against, law, trials):
    chance = np.random.default_rng(len(counts) + repeats)
    speedups = {gpus: law(gpus) / (law(1) if against == "self" else 1.0) for gpus in counts}
    actual = np.polyfit(counts, list(speedups.values()), 1)[0]
    covered = 0
    for _ in range(trials):
        fitted = fit_slope(make_curve(chance, speedups, repeats, sd, against), against)
        assert fitted is not None and fitted.speedup.has_limits
        covered += fitted.speedup.low <= actual <= fitted.speedup.high
    return covered


def test_a_slope_to_32_devices_holds_the_truth():
    """The case that ordinary least squares covers in 0.48 of the sweeps, since one point decides the slope."""
    assert count_covered(COUNTS["1 to 32"], 3, 0.03, "self", straight, 300) >= 0.9 * 300


@pytest.mark.truth
@pytest.mark.slow
@pytest.mark.parametrize("law", [straight, amdahl])
@pytest.mark.parametrize("against", ["bare", "self"])
@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("name", COUNTS)
def test_slopes_hold_the_truth(name, repeats, against, law):
    """Of lines and of curves, in 0.92 to 0.99 of 1,000 sweeps."""
    share = count_covered(COUNTS[name], repeats, 0.03, against, law, TRIALS) / TRIALS
    print(f"\n{name}, {repeats} repeats, against {against}, {law.__name__}: {share:.3f}")
    assert MIN_COVERED <= share <= MAX_COVERED
