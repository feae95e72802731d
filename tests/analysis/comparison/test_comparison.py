"""Comparison of two sides, or of the values of a key: pairs and verdicts."""

import dataclasses

import pytest

from scalebench.analysis.comparison import compare, compare_by
from scalebench.core.errors import InputError
from scalebench.core.spec import HardwareSpec
from tests.builders.comparisons import machine_settings, make_failed_run, make_results, make_runs, train_settings
from tests.builders.runs import simulated_config

STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]  # five repeats within 0.5 %


def slower(share):
    return [each * (1 + share) for each in STEADY]


def only(actual):
    (pair,) = actual.pairs
    return pair


def test_a_slow_down_is_a_regression_only_beyond_the_threshold():
    a, b = make_runs("a", STEADY), make_runs("b", slower(0.05))
    pair = only(compare(a, b))
    assert (pair.verdict, pair.regression) == ("slower", False)
    assert pair.ratio == pytest.approx(1 / 1.05) and pair.interval.low < pair.ratio < pair.interval.high < 1
    assert pair.test == "Welch's t, 5 and 5 repeats"
    for threshold, status in [(None, "ok"), (0.0, "regression"), (0.03, "regression"), (0.05, "ok")]:
        actual = compare(a, b, threshold=threshold)
        assert actual.status == status and only(actual).verdict == "slower"


def test_a_large_ratio_that_noise_explains_is_no_regression():
    noisy = [0.08, 0.12, 0.1, 0.13]
    actual = compare(make_runs("a", noisy), make_runs("b", [each * 1.1 for each in noisy]), threshold=0.03)
    assert (actual.status, only(actual).verdict) == ("ok", "no difference resolved")


def test_the_same_runs_have_their_own_verdict():
    runs = [*make_runs("a", STEADY), *make_runs("a", [0.1], gpus=2)]
    actual = compare(runs, runs, threshold=0.0)
    assert (
        actual.status == "ok"
        and [(p.ratio, p.interval, p.verdict) for p in actual.pairs] == [(1.0, None, "the same run")] * 2
    )


def test_a_gate_without_enough_data_has_a_status_of_its_own():
    """One that passes would hide that nothing was compared, one that fails would call it a regression."""
    a, b = make_runs("a", STEADY[:1]), make_runs("b", slower(0.5)[:1])
    actual = compare(a, b, threshold=0.0)
    assert (only(actual).verdict, only(actual).interval, actual.status) == ("no verdict", None, "too little data")
    assert compare(a, b).status == "ok"
    a += make_runs("a", STEADY, gpus=2)
    assert compare(a, [*b, *make_runs("b", STEADY, gpus=2)], threshold=0.0).status == "too little data"
    assert compare(a, [*b, *make_runs("b", slower(0.5), gpus=2)], threshold=0.0).status == "regression"


def test_verdicts_are_adjusted_for_the_number_of_pairs():
    """One pair alone is resolved, and is not among eight that are not."""
    a, b = [0.1, 0.102, 0.098, 0.101, 0.099], [0.1 * 1.025 * w for w in (1, 1.02, 0.98, 1.01, 0.99)]
    alone = only(compare(make_runs("a", a), make_runs("b", b)))
    assert alone.verdict == "slower" and 0.01 < alone.p < 0.05 and alone.p_holm == alone.p
    many = [one for gpus in range(1, 9) for one in make_runs("a", a, gpus=gpus)]
    others = make_runs("b", b) + [one for gpus in range(2, 9) for one in make_runs("b", a, gpus=gpus)]
    actual = compare(many, others, threshold=0.0)
    first = actual.pairs[0]
    assert (first.verdict, actual.status) == ("no difference resolved", "ok")
    assert first.p == pytest.approx(alone.p) and first.p_holm == pytest.approx(8 * alone.p)
    assert first.interval.limits == pytest.approx(alone.interval.limits), "the interval is that of the pair alone"


def test_pairs_share_everything_but_what_may_differ():
    a = [
        *make_runs("a", [0.1]),
        *make_runs("a", [0.1], gpus=2),
        *make_runs("a", [0.1], **train_settings(precision="tf32")),
    ]
    b = [
        *make_runs("b", [0.1], **machine_settings(hostname="other", versions={"torch": "2.9"})),
        *make_runs("b", [0.1], gpus=4),
    ]
    actual = compare(a, b)
    assert [pair.label for pair in actual.pairs] == [{"strategy": "ddp", "gpus": "1", "precision": "float32"}]
    reported = {(key, x, y, n) for key, x, y, n in actual.contrasts[0].differences}
    assert reported == {("machine.hostname", "node", "other", 1), ("versions.torch", "none", "2.9", 1)}


def test_the_way_out_of_a_refusal_is_one():
    a, b = make_runs("a", STEADY), make_runs("b", slower(0.2), **train_settings(batch_per_device=20))
    assert compare(a, b).refusal.endswith("; --ignore train.batch_per_device pairs them")
    actual = compare(a, b, ignore=["train.batch_per_device"])
    assert actual.status == "ok" and only(actual).verdict == "slower"
    assert actual.contrasts[0].differences == [("train.batch_per_device", "10", "20", 1)]
    assert compare(a, b, ignore=["train"]).status == "ok"


def test_keys_are_left_out_beside_the_one_that_is_compared():
    a, b = make_runs("a", STEADY), make_runs("b", STEADY, seed=1, **train_settings(precision="tf32"))
    assert compare_by([*a, *b], "train.precision").refusal.endswith("seed: 0 and 1; --ignore seed pairs them")
    assert len(compare_by([*a, *b], "train.precision", ignore=["seed"]).pairs) == 1


def test_nothing_that_went_well():
    assert compare([make_failed_run("a")], make_runs("b", [0.1])).refusal == "no run of A went well"
    assert compare(make_runs("a", [0.1]), [make_failed_run("b")]).refusal == "no run of B went well"


@pytest.mark.parametrize(
    ("keys", "reason"), [(["precision"], "did you mean 'train.precision'"), (["x"], "no key 'x'; known: ")]
)
def test_unknown_keys(keys, reason):
    with pytest.raises(InputError, match=reason):
        compare(make_runs("a", [0.1]), make_runs("b", [0.1]), ignore=keys)
    with pytest.raises(InputError, match=reason):
        compare_by(make_runs("a", [0.1]), keys[0])


def formats(share=1.25, side="a"):
    """Six device counts in two formats, of which the second is faster by about `share`, side by side with the first or
    after it."""
    actual = []
    for gpus in range(1, 7):
        actual += make_runs("a", [0.1], gpus=gpus, **train_settings(data_format="nhwc"))
        block_s = 0.1 / (share + 0.01 * (gpus - 3.5))
        actual += make_runs(side, [block_s], gpus=gpus, run_id=f"nchw-{gpus}", **train_settings(data_format="nchw"))
    return actual


def test_by_a_key_gives_the_median_over_the_pairs():
    (contrast,) = compare_by(formats(), "train.data_format", base="nhwc").contrasts
    assert (contrast.a, contrast.b, len(contrast.pairs)) == ("nhwc", "nchw", 6)
    assert contrast.median == pytest.approx(1.25, rel=1e-3)
    assert contrast.median_interval.low == pytest.approx(1.225) and contrast.median_interval.high == pytest.approx(
        1.275
    )
    assert [pair.label for pair in contrast.pairs] == [{"strategy": "ddp", "gpus": str(n)} for n in range(1, 7)]
    assert contrast.differences == []
    after = compare_by(formats(side="b"), "train.data_format", base="nhwc").contrasts[0]
    assert (after.median, after.median_interval) == (contrast.median, None), "the machine may have changed in between"
    turned = compare_by(formats(), "train.data_format").contrasts[0]
    assert (turned.a, turned.b) == ("nchw", "nhwc") and turned.median == pytest.approx(1 / 1.25, rel=1e-2)


def test_by_hardware_the_machine_may_differ_and_is_told():
    big = {"hardware": HardwareSpec("p100", devices="cpu", gpus_per_node=4), **machine_settings(cpu_model="another")}
    actual = compare_by([*make_runs("a", STEADY), *make_runs("b", [each / 4.4 for each in STEADY], **big)], "hardware")
    (contrast,) = actual.contrasts
    assert (contrast.a, contrast.b) == ("cpu", "p100") and contrast.median == pytest.approx(4.4)
    keys = {key for key, *_ in contrast.differences}
    assert {"machine.cpu_model", "hardware.gpus_per_node"} <= keys and "hardware.name" not in keys


def test_of_other_models_it_is_told_that_samples_differ():
    other = dataclasses.replace(make_results("a", [0.1])[0].spec and simulated_config().model, name="mlp")
    actual = compare_by([*make_runs("a", [0.1]), *make_runs("b", [0.05], model=other)], "model")
    assert len(actual.pairs) == 1 and any("a sample is not the same work" in note for note in actual.notes)
    assert compare(make_runs("a", [0.1]), make_runs("b", [0.1])).notes == []


def test_one_value_is_nothing_to_compare():
    actual = compare_by(make_runs("a", [0.1]), "train.precision")
    assert (actual.status, actual.refusal) == (
        "not comparable", "train.precision is float32 in all rows: nothing to compare"
    )  # fmt: skip


def test_several_values_are_one_family():
    runs = []
    for number, precision in enumerate(("float32", "tf32", "bfloat16")):
        block_s = [each * (1 + 0.1 * number) for each in STEADY]
        runs += make_runs("abc"[number], block_s, **train_settings(precision=precision))
    reported = compare_by(runs, "train.precision", base="float32")
    assert [(c.a, c.b) for c in reported.contrasts] == [("float32", "bfloat16"), ("float32", "tf32")]
    least = min(pair.p for pair in reported.pairs)
    assert min(pair.p_holm for pair in reported.pairs) == pytest.approx(2 * least)


def test_a_failed_run_goes_before_a_regression_and_only_with_a_threshold():
    a = [*make_runs("a", STEADY), *make_runs("a", STEADY, gpus=2)]
    b = [*make_runs("b", slower(0.2)), make_failed_run("b", gpus=2)]
    assert compare(a, b, threshold=0.03).status == "failed run"
    assert compare(a, b).status == "ok"
