"""Curves over batches: the saturating batch, and which rows form a curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.batches import find_saturating_batch, make_batch_curves
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
    assert saturation.share >= 0.9
    assert all(rate < 0.9 * max(rates) for rate in rates[: BATCHES.index(saturation.batch)])
    scaled = find_saturating_batch(rows([2.0**power * rate for rate in rates], width=width), ratio_of_rows)
    assert scaled.candidates == saturation.candidates
    assert (scaled.batch, scaled.share, scaled.highest) == (saturation.batch, saturation.share, saturation.highest)


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
