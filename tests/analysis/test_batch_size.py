"""Curves over batches: the saturating batch, the fit of step times, and which rows form a curve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.batches import batch_and_step_s, find_saturating_batch, fit_step_time, make_batch_curves
from scalebench.analysis.scaling_curves import Curve, make_curves
from scalebench.report.sections.batches import MAX_SENTENCES, describe_curve, list_terminal_sentences
from scalebench.sweeps.console import Console
from tests.builders import sweeps
from tests.builders.batch_runs import make_batch_run
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


def test_a_line_without_a_half_batch_has_none():
    """Caches: a step of twice the samples takes three times as long. A device that is not full: no longer at all."""
    steeper, flat = fit_step_time([(1, 1.0), (2, 3.0), (4, 7.0)]), fit_step_time([(1, 2.0), (2, 1.5), (4, 1.4)])
    assert steeper.half_batch is None and steeper.limit is not None
    assert (flat.half_batch, flat.limit, flat.low) == (None, None, None)
    two = fit_step_time([(10, 0.02), (20, 0.03)])
    assert two.half_batch == pytest.approx(10) and two.low is two.high is None
    for points in ([], [(10, 0.02)], [(10, 0.02), (10, 0.03)]):
        assert fit_step_time(points) is None
    with pytest.raises(ValueError, match="a step takes time"):
        fit_step_time([(10, 0.0), (20, 1.0)])


def test_step_times_belong_to_the_mean_batch_of_an_epoch():
    """6,000 samples at 5,000: one step of 5,000 and one of 1,000, on the line where one of 3,000 lies."""
    (row,) = rows([3000 / 0.05], batches=[5000])
    assert batch_and_step_s([row | {"step_s": 0.05, "gpus": 2}]) == [(1500, 0.05)]
    assert batch_and_step_s([row | {"step_s": None}]) == []


def list_curves(*results):
    curves = make_batch_curves(make_curves(sweeps.pool(results).make_frame()))
    return [(curve.name, [row["batch_per_device"] for row in curve.rows]) for curve in curves]


def test_other_settings_are_other_curves_and_named():
    rules = [make_batch_run(batch, accumulate=parts, learning_rate_rule=rule, base_batch=10)
             for parts, rule in ((1, "sqrt"), (4, "linear")) for batch in (10, 100)]  # fmt: skip
    assert list_curves(*rules) == [
        (f"ddp_gloo learning_rate_rule={rule} accumulate={parts}, 1 device", [10, 100])
        for parts, rule in ((1, "sqrt"), (4, "linear"))
    ]
    buckets = [make_batch_run(batch, bucket=bucket) for batch in (10, 100) for bucket in (25.0, 1.0)]
    other = [make_batch_run(batch, hardware="other") for batch in (100, 1000)]
    assert list_curves(*buckets, *other) == [
        ("ddp_gloo, 1 device", [10, 100]), ("ddp_gloo bucket_cap_mb=1.0, 1 device", [10, 100]),
        ("ddp_gloo, 1 device", [100, 1000]),
    ]  # fmt: skip
    # One batch each: neither is a curve, and they are none together.
    assert list_curves(make_batch_run(10, optimizer="sgd"), make_batch_run(100, optimizer="adam")) == []
    again = [make_batch_run(batch, learning_rate=rate) for rate in (0.1, 0.2) for batch in (10, 100)]
    assert list_curves(*again) == [(f"ddp_gloo learning_rate={rate}, 1 device", [10, 100]) for rate in (0.1, 0.2)]
    assert list_curves(make_batch_run(10), make_batch_run(10, learning_rate=0.2)) == []


def make_curve(rates, width=0.01):
    """Limits lie off by the share `width`; its steps are not known."""
    curve_rows = [{**row, "step_s": None} for row in rows(rates.values(), rates, width)]
    if width is None:
        curve_rows = [{**row, "interval_over": "blocks", "repeats": 1} for row in curve_rows]
    return Curve("ddp, 1 devices", {}, {"model": "mlp"}, curve_rows)


ALONE = "and no neighbour could be it by its interval"


@pytest.mark.parametrize(("rates", "sentence"), [
    ({75: 50, 150: 89.5, 350: 95, 700: 100, 1000: 99},
     "saturating batch: 350 per device (ddp, 1 devices): 95 % of the highest throughput, that of 700; "
     "by their intervals 150 could be it"),
    ({75: 100, 150: 99}, "saturating batch: 75 per device or less (ddp, 1 devices): no measured batch has a higher "
                         f"throughput, {ALONE}"),
])  # fmt: skip
def test_the_sentence_about_the_saturating_batch(rates, sentence):
    assert describe_curve(make_curve(rates), ratio_of_rows) == sentence
    once = str(describe_curve(make_curve(rates, width=None), ratio_of_rows))
    assert once.endswith(", which is not sure: one repeat, measure.repeats=3 decides")
    assert str(describe_curve(make_curve(rates), ratio_of_rows, "mlp")).count("(mlp with ddp, 1 devices)") == 1


def test_a_sweep_over_batches_has_a_line_for_each_curve(tmp_path, capsys):
    def list_sentences(*results):
        configurations = sweeps.pool(results)
        return list_terminal_sentences(make_curves(configurations.make_frame()), configurations.estimate_ratio)

    runs = [make_batch_run(10), make_batch_run(20)]
    assert list_sentences(make_batch_run(10), make_batch_run(10, strategy="horovod_gloo"), sweeps.failed_run()) == []
    (line,) = list_sentences(*runs, sweeps.run("ddp_gloo", 2))
    assert line.startswith("no saturating batch up to 20 per device (ddp_gloo, 1 device): ")
    sweeps.write_results(tmp_path, runs)
    Console().print_table([tmp_path])
    assert line[:60] in capsys.readouterr().out
    many = [make_batch_run(batch, strategy=f"s{number}") for number in range(MAX_SENTENCES + 2) for batch in (10, 20)]
    sentences = list_sentences(*many)
    assert len(sentences) == MAX_SENTENCES + 1 and sentences[-1].startswith("saturating batches: 2 more")
