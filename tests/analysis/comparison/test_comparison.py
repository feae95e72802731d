"""Comparison of two sides or of the values of a key: pairs, verdicts, what has no partner, failures that count."""

import dataclasses

import pytest

from scalebench.analysis.comparison import compare, compare_by
from scalebench.core.errors import InputError
from scalebench.core.spec import HardwareSpec
from tests.builders.comparisons import machine_settings, make_failed_run, make_runs, train_settings
from tests.builders.runs import MODEL

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
    noisy = [0.08, 0.12, 0.1, 0.13]
    actual = compare(make_runs("a", noisy), make_runs("b", [each * 1.1 for each in noisy]), threshold=0.03)
    assert (actual.status, only(actual).verdict) == ("ok", "no difference resolved"), "noise explains it"


def test_the_same_runs_have_their_own_verdict():
    runs = [*make_runs("a", STEADY), *make_runs("a", [0.1], gpus=2), make_failed_run("a", gpus=2)]
    actual = compare(runs, runs, threshold=0.0)
    assert [(p.ratio, p.interval, p.verdict) for p in actual.pairs] == [(1.0, None, "the same run")] * 2
    assert actual.status == "ok" and [one.failed for one in actual.unmatched] == [False]


def test_the_way_out_of_a_refusal_is_one():
    a, b = make_runs("a", STEADY), make_runs("b", slower(0.2), **train_settings(batch_per_device=20))
    assert compare(a, b).refusal.endswith("; --ignore train.batch_per_device pairs them")
    actual = compare(a, b, ignore=["train.batch_per_device"])
    assert actual.status == "ok" and only(actual).verdict == "slower"
    assert actual.contrasts[0].differences == [("train.batch_per_device", "10", "20", 1)]
    assert compare(a, b, ignore=["train"]).status == "ok"
    by = [*a, *make_runs("b", STEADY, seed=1, **train_settings(precision="tf32"))]
    assert compare_by(by, "train.precision").refusal.endswith("seed: 0 and 1; --ignore seed pairs them")
    assert len(compare_by(by, "train.precision", ignore=["seed"]).pairs) == 1


def test_nothing_to_compare_has_its_reason():
    assert compare([make_failed_run("a")], make_runs("b", [0.1])).refusal == "no run of A went well"
    assert compare(make_runs("a", [0.1]), [make_failed_run("b")]).refusal == "no run of B went well"
    actual = compare_by(make_runs("a", [0.1]), "train.precision")
    assert actual.status == "not comparable"
    assert actual.refusal == "train.precision is float32 in all rows: nothing to compare"
    for key, reason in (("precision", "did you mean 'train.precision'"), ("x", "no key 'x'; known: ")):
        with pytest.raises(InputError, match=reason):
            compare(make_runs("a", [0.1]), make_runs("b", [0.1]), ignore=[key])
        with pytest.raises(InputError, match=reason):
            compare_by(make_runs("a", [0.1]), key)


def test_what_differs_with_the_key_is_told():
    big = {"hardware": HardwareSpec("p100", devices="cpu", gpus_per_node=4), **machine_settings(cpu_model="another")}
    fast = make_runs("b", [each / 4.4 for each in STEADY], **big)
    (contrast,) = compare_by([*make_runs("a", STEADY), *fast], "hardware").contrasts
    assert (contrast.a, contrast.b) == ("cpu", "p100") and contrast.median == pytest.approx(4.4)
    keys = {key for key, *_ in contrast.differences}
    assert {"machine.cpu_model", "hardware.gpus_per_node"} <= keys and "hardware.name" not in keys
    mlp = make_runs("b", [0.05], model=dataclasses.replace(MODEL, name="mlp"))
    actual = compare_by([*make_runs("a", [0.1]), *mlp], "model")
    assert len(actual.pairs) == 1 and any("a sample is not the same work" in note for note in actual.notes)
    assert compare(make_runs("a", [0.1]), make_runs("b", [0.1])).notes == []


OK = "ok"  # a run that went well; else its status


def left(a, b):
    """Return what is unmatched of the runs on two devices, beside a pair that there is in any case."""
    sides = [
        [*make_runs(side, [0.1], gpus=8),
         *(run for status in statuses for run in
           (make_runs(side, [0.1], gpus=2) if status == OK else [make_failed_run(side, status, gpus=2)]))]
        for side, statuses in (("a", a), ("b", b))
    ]  # fmt: skip
    return compare(*sides, threshold=0.0).unmatched


@pytest.mark.parametrize(("a", "b", "counts"), [
    *(([OK], [status], True) for status in ("failed", "oom", "timeout", "cancelled", "unsupported")),
    ([OK], [OK, "failed"], True), ([OK, "failed"], ["failed"], True),  # one failed repeat of several counts
    ([], ["oom"], True), ([], ["unsupported"], False),  # a new row
    (["failed"], ["failed"], False), (["oom"], ["timeout"], False), (["unsupported"], ["unsupported"], False),
    (["unsupported"], ["failed"], True), (["failed"], [OK], False),
])  # fmt: skip
def test_a_failure_counts_if_the_partner_was_ok(a, b, counts):
    (one,) = left(a, b)
    assert one.failed == counts
    if b == [OK]:
        assert (one.side, one.reason) == ("A", "failed in A: failed as configured")
    else:
        in_both = " (in A too)" if a and OK not in a and not counts else ""
        assert (one.side, one.run_id) == ("B", f"b-ddp-2-{b[-1]}")
        assert one.reason == f"{b[-1]}: failed as configured{in_both}"


def test_an_ok_run_without_a_figure_failed():
    (one,) = compare(make_runs("a", [0.1, 0.1]), make_runs("b", [0.0]), threshold=0.0).unmatched
    assert one.failed and one.reason == "nothing was measured"


def test_rows_that_cannot_be_merged_are_listed():
    steps = [*make_runs("a", [0.1], options={"bucket_cap_mb": 1.0}), *make_runs("a", [0.2])]
    actual = compare(steps, make_runs("b", [0.1]), ignore=["strategy.options.bucket_cap_mb"])
    reported = [one.reason for one in actual.unmatched if one.side == "A"]
    assert reported == ["without strategy.options.bucket_cap_mb several rows are one: 1, 25"]
    assert actual.refusal == reported[0]


def test_of_several_values_a_row_is_listed_once_and_nothing_may_pair():
    def by(base, gpus):
        runs = make_runs("a", [0.1])
        for side, precision in (("b", "tf32"), ("c", "bfloat16")):
            runs += make_runs(side, [0.1], gpus=gpus, **train_settings(precision=precision))
        return compare_by([*runs, make_failed_run("a", gpus=3)], "train.precision", base=base, threshold=0.0)

    assert [(one.side, one.run_id) for one in by("tf32", 1).unmatched] == [("float32", "a-ddp-3-failed")]
    assert by("float32", 2).refusal == (
        "nothing in float32 pairs with the others: closest rows differ in gpus: 1 and 2; --ignore gpus pairs them"
    )
