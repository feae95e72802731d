"""Curves over batches: the saturating batch, the fit of step times, and which rows form a curve."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.batch_size import batch_and_step_s, find_saturating_batch, fit_step_time, make_batch_curves
from scalebench.analysis.repeats import load_configurations, pool_results
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.spec import TrainSpec
from scalebench.runner.parent import run_spec
from tests.builders import sweeps
from tests.builders.runs import simulated_config, simulated_spec
from tests.builders.sweeps import ratio_of_rows

BATCHES = (75, 150, 350, 700, 1000, 2000, 5000)


def rows(rates, batches=BATCHES, width=0.02):
    """One a batch; limits lie off by the share `width` on either side."""
    low, high = (None, None) if width is None else (1 - width, 1 + width)
    return [
        {"batch_per_device": batch, "throughput_samples_per_s": rate, "gpus": 1, "step_s": batch / rate,
         "interval_over": "repeats", "flags": None, "repeats": 3,
         "throughput_low": None if low is None else low * rate, "throughput_high": high and high * rate}
        for batch, rate in zip(batches, rates, strict=False)
    ]  # fmt: skip


def line(start_s, sample_s, batches=BATCHES):
    return [batch / (start_s + sample_s * batch) for batch in batches]


def test_the_smallest_batch_with_nine_tenths_of_the_throughput_saturates():
    saturation = find_saturating_batch(rows([10, 20, 40, 89, 90, 100, 95]), ratio_of_rows)
    assert (saturation.batch, saturation.share, saturation.rate) == (1000, 0.9, 90)
    assert (saturation.highest, saturation.highest_rate, saturation.first, saturation.last) == (2000, 100, False, False)
    assert find_saturating_batch(rows([10, 20, 40, 89, 90, 100, 95]), ratio_of_rows, share=0.5).batch == 700


def test_candidates_are_chosen_by_their_intervals():
    # Ratios to the highest have limits of about 2 % * sqrt(2), 2.7 %: 0.89 reaches 0.9, and 0.90 is not surely there.
    saturation = find_saturating_batch(rows([10, 20, 40, 89, 90, 100, 95]), ratio_of_rows)
    assert saturation.candidates == (700, 1000, 2000)
    surely = find_saturating_batch(rows([10, 20, 40, 80, 95, 100, 99]), ratio_of_rows)
    assert surely.candidates == (1000,)
    below = find_saturating_batch(rows([10, 20, 40, 89, 95, 100, 99]), ratio_of_rows)
    assert (below.batch, below.candidates) == (1000, (700, 1000))
    noisy = find_saturating_batch(rows([100, 99], width=0.3), ratio_of_rows)  # not even the highest one is surely it
    assert (noisy.batch, noisy.candidates) == (75, (75, 150))
    untold = find_saturating_batch(rows([10, 20, 40, 89, 90, 100, 95], width=None), ratio_of_rows)
    assert (untold.batch, untold.candidates) == (1000, None)
    one_start = [{**row, "interval_over": "blocks"} for row in rows([10, 20, 40, 80, 95, 100, 99])]
    assert find_saturating_batch(one_start, ratio_of_rows).candidates is None


def test_a_saturating_batch_at_an_end_of_the_range_is_marked():
    rising, flat = (find_saturating_batch(rows(r), ratio_of_rows) for r in ([10, 20, 40, 80], [100, 99, 98, 60]))
    assert (rising.batch, rising.first, rising.last) == (700, False, True)
    assert (flat.batch, flat.first, flat.last) == (75, True, False)
    assert find_saturating_batch(rows([10]), ratio_of_rows) is None and find_saturating_batch([], ratio_of_rows) is None


@given(
    rates=st.lists(st.floats(1.0, 1e6), min_size=2, max_size=7),
    power=st.integers(-20, 20),  # of two, so that nothing is rounded
    width=st.floats(0.0, 0.5),
)
def test_the_saturating_batch_is_a_candidate_in_any_unit(rates, power, width):
    saturation = find_saturating_batch(rows(rates, width=width), ratio_of_rows)
    assert saturation.candidates is not None and saturation.batch in saturation.candidates
    assert saturation.share >= 0.9 and saturation.highest_rate == max(rates)
    assert all(rate < 0.9 * max(rates) for rate in rates[: BATCHES.index(saturation.batch)])
    scaled = find_saturating_batch(rows([2.0**power * rate for rate in rates], width=width), ratio_of_rows)
    assert scaled.candidates == saturation.candidates
    assert (scaled.batch, scaled.share, scaled.highest) == (saturation.batch, saturation.share, saturation.highest)


@given(start_s=st.floats(1e-5, 10.0), sample_s=st.floats(1e-8, 1e-2))
def test_the_fit_of_an_exact_line_is_exact(start_s, sample_s):
    saturation = fit_step_time([(batch, start_s + sample_s * batch) for batch in BATCHES])
    share = sample_s * max(BATCHES) / (start_s + sample_s * max(BATCHES))  # of what rounding is a share of
    assert saturation.alpha_s == pytest.approx(start_s, rel=1e-6)
    assert saturation.beta_s == pytest.approx(sample_s, rel=1e-9 / share)
    assert saturation.half_batch == pytest.approx(start_s / sample_s, rel=1e-6 + 1e-9 / share)
    assert saturation.worst < 1e-9 and saturation.points == 7


def test_the_fit_is_weighted_least_squares():
    from scipy.optimize import curve_fit

    times = [0.011, 0.013, 0.021, 0.029, 0.043, 0.078, 0.2]
    saturation = fit_step_time(list(zip(BATCHES, times, strict=True)))
    expected, _ = curve_fit(lambda b, one, two: one + two * b, BATCHES, times, p0=[0.01, 1e-5], sigma=times)
    assert (saturation.alpha_s, saturation.beta_s) == pytest.approx(tuple(expected), rel=1e-5)
    off = [1 - (expected[0] + expected[1] * b) / t for b, t in zip(BATCHES, times, strict=True)]
    assert saturation.worst == pytest.approx(max(map(abs, off)), rel=1e-4) and 0.9 < saturation.r_squared < 1
    assert saturation.low < saturation.half_batch < saturation.high


def test_the_limits_follow_fieller():
    """At either, alpha - limit * beta lies Student's t times its standard error from 0."""
    from scipy.stats import t as student

    times = [0.012, 0.009, 0.018, 0.021, 0.04, 0.06, 0.2]  # scatters widely, so that no term is small
    saturation = fit_step_time(list(zip(BATCHES, times, strict=True)))
    assert saturation.low and saturation.high is not None
    design = np.array([[1 / time, batch / time] for batch, time in zip(BATCHES, times, strict=True)])
    line, around, _, _ = np.linalg.lstsq(design, np.ones(7), rcond=None)
    covariance = around[0] / 5 * np.linalg.inv(design.T @ design)
    for limit in (saturation.low, saturation.high):
        contrast = np.array([1.0, -limit])
        assert abs(contrast @ line) / np.sqrt(contrast @ covariance @ contrast) == pytest.approx(student.ppf(0.975, 5))


def test_the_limits_cover_the_truth_as_often_as_promised():
    """Updates of 4 ms and 10 us a sample, measured with 3 %: n_1/2 is 400."""
    chance, held, trials = np.random.default_rng(8), 0, 2000
    for _ in range(trials):
        off = chance.normal(1.0, 0.03, len(BATCHES))
        saturation = fit_step_time([(b, (0.004 + 1e-5 * b) * one) for b, one in zip(BATCHES, off, strict=True)])
        held += saturation.low <= 400 <= saturation.high
    assert 0.935 < held / trials < 0.965


def test_a_line_without_a_half_batch_has_none():
    """Caches: a step of twice the samples takes three times as long. A device that is not full: no longer at all."""
    steeper, flat = fit_step_time([(1, 1.0), (2, 3.0), (4, 7.0)]), fit_step_time([(1, 2.0), (2, 1.5), (4, 1.4)])
    assert steeper.half_batch is None and steeper.limit is not None
    assert (flat.half_batch, flat.limit, flat.low) == (None, None, None)
    two = fit_step_time([(10, 0.02), (20, 0.03)])
    assert two.half_batch == pytest.approx(10) and two.low is two.high is None
    assert (
        fit_step_time([(10, 0.02)]) is None
        and fit_step_time([(10, 0.02), (10, 0.03)]) is None
        and fit_step_time([]) is None
    )
    with pytest.raises(ValueError, match="a step takes time"):
        fit_step_time([(10, 0.0), (20, 1.0)])


def test_step_times_belong_to_the_mean_batch_of_an_epoch():
    """6,000 samples at 5,000: one step of 5,000 and one of 1,000, on the line where one of 3,000 lies."""
    (row,) = rows([3000 / 0.05], batches=[5000])
    assert batch_and_step_s([row | {"step_s": 0.05, "gpus": 2}]) == [(1500, 0.05)]
    assert batch_and_step_s([row | {"step_s": None}]) == []


@pytest.mark.slow
def test_simulated_runs_have_their_true_saturating_batch(tmp_path):
    """20 ms and 0.1 ms a sample: n_1/2 is 200; 6,400 have 9.7 samples/ms, 3,200 have 9.4 and 800 have 8.0."""
    options = {"step_s": 0.02, "sample_s": 1e-4}
    long = {"max_s": 2.0, "block_s": 0.1, "warmup_max_s": 0.5}
    for batch in (50, 200, 800, 3200, 6400):
        train = TrainSpec(batch_per_device=batch)
        spec = simulated_spec(options=options, measure=long, size=17_067, train=train)
        assert run_spec(spec, tmp_path / str(batch)).status == "ok"
    configurations = load_configurations(tmp_path)
    (curve,) = make_batch_curves(make_curves(configurations.make_frame()))
    saturation = find_saturating_batch(curve.rows, configurations.estimate_ratio)
    made = fit_step_time(batch_and_step_s(curve.rows))
    assert (saturation.batch, saturation.highest) == (3200, 6400)
    assert made.half_batch == pytest.approx(200, rel=0.2) and made.r_squared > 0.99


def batched(batch, gpus=1, **settings):
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch, **settings)
    made = sweeps.run("ddp_gloo", gpus, train=train)
    made.run_id = made.fingerprint = "-".join(map(str, (gpus, batch, *settings.values())))
    for rank in made.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
    return made


def saturation(*results):
    return make_batch_curves(make_curves(pool_results(results, [Path(str(number)) for number in range(len(results))])))


def test_what_a_machine_does_in_a_repeat_cancels_in_the_saturating_batch():
    """A machine that is 30 % slower in one repeat is so for all batches."""
    runs = []
    for minute, (repeat, batch) in enumerate((repeat, batch) for repeat in range(3) for batch in (10, 18, 20)):
        train = dataclasses.replace(simulated_config().train, batch_per_device=batch)
        made = sweeps.run("ddp_gloo", 1, repeat, minute=minute, train=train)
        made.run_id, made.fingerprint = f"{batch}-{repeat}", f"{batch}"
        for rank in made.ranks:
            rank.block_samples = [2 * batch] * len(rank.block_s)
            rank.block_s = [(1.0, 1.3, 1.15)[repeat] * seconds for seconds in rank.block_s]
        runs.append(made)
    configurations = sweeps.pool(runs)
    (curve,) = make_batch_curves(make_curves(configurations.make_frame()))
    point = find_saturating_batch(curve.rows, configurations.estimate_ratio, share=0.85)
    assert point is not None and (point.batch, point.candidates) == (18, (18,))


def batches(curve):
    return [row["batch_per_device"] for row in curve.rows]


def test_a_batch_curve_is_one_configuration_on_one_number_of_devices():
    made = saturation(*(batched(batch, gpus) for batch in (100, 10, 1000) for gpus in (1, 2)), batched(10, 4))
    assert [(curve.name, batches(curve)) for curve in made] == [
        ("ddp_gloo, 1 device", [10, 100, 1000]),
        ("ddp_gloo, 2 devices", [10, 100, 1000]),
    ]
    assert {curve.group["batch"] for curve in made} == {"10 to 1,000 per device"}


def test_other_optimizer_settings_are_other_curves_and_named():
    rules = [
        batched(batch, learning_rate_rule=rule, base_batch=10) for batch in (10, 100) for rule in ("sqrt", "linear")
    ]
    assert [(curve.name, batches(curve)) for curve in saturation(*rules)] == [
        ("ddp_gloo learning_rate_rule=sqrt, 1 device", [10, 100]),
        ("ddp_gloo learning_rate_rule=linear, 1 device", [10, 100]),
    ]
    parts = saturation(*(batched(batch, accumulate=parts) for parts in (1, 4) for batch in (100, 1000)))
    assert [curve.name for curve in parts] == ["ddp_gloo accumulate=1, 1 device", "ddp_gloo accumulate=4, 1 device"]
    # One batch each: neither is a curve, and they are none together.
    assert saturation(batched(10, optimizer="sgd"), batched(100, optimizer="adam")) == []


def test_rows_with_one_batch_and_equal_columns_are_split():
    again = [batched(batch, learning_rate=rate) for rate in (0.1, 0.2) for batch in (10, 100)]
    assert [(curve.name, batches(curve)) for curve in saturation(*again)] == [
        ("ddp_gloo, 1 device", [10, 100]),
        ("ddp_gloo, 1 device #2", [10, 100]),
    ]
    assert saturation(batched(10), batched(10, learning_rate=0.2)) == []
