"""Rows without a partner, and which failures count."""

from scalebench.analysis.comparison import compare, compare_by
from tests.builders.comparisons import make_failed_run, make_runs, train_settings

OK_2 = [*make_runs("a", [0.1], gpus=2)]


def left(a, b):
    """Beside a pair that there is in any case."""
    return compare([*a, *make_runs("a", [0.1], gpus=8)], [*b, *make_runs("b", [0.1], gpus=8)], threshold=0.0).unmatched


def test_a_row_of_one_side_names_the_closest_of_the_other():
    (one,) = left(OK_2, [])
    assert (one.side, one.label, one.failed) == ("A", {"strategy": "ddp", "gpus": "2"}, False)
    assert one.reason == "not in B; the closest row there differs in gpus: 2 and 8"
    (other,) = left([], make_runs("b", [0.1], gpus=2))
    assert (other.side, other.reason) == ("B", "not in A; the closest row there differs in gpus: 2 and 8")


def test_the_closest_row_is_searched_only_a_few_times():
    many = [one for gpus in range(9, 40) for one in make_runs("a", [0.1], gpus=gpus)]
    reasons = [one.reason for one in left(many, [])]
    assert len(reasons) == 31 and reasons.count("not in B") == 11


def test_a_failure_counts_if_the_partner_was_ok():
    for status in ("failed", "oom", "timeout", "cancelled", "unsupported"):
        (one,) = left(OK_2, [make_failed_run("b", status, gpus=2)])
        assert (one.failed, one.side, one.run_id) == (True, "B", f"b-ddp-2-{status}")
        assert one.reason == f"{status}: failed as configured"


def test_one_failed_repeat_of_several_counts():
    (one,) = left(OK_2, [*make_runs("b", [0.1], gpus=2), make_failed_run("b", gpus=2)])
    assert one.failed
    (again,) = left([*OK_2, make_failed_run("a", gpus=2)], [make_failed_run("b", gpus=2)])
    assert again.failed


def test_a_failure_of_a_new_row_counts_unless_it_is_unsupported():
    assert [one.failed for one in left([], [make_failed_run("b", "oom", gpus=2)])] == [True]
    assert [one.failed for one in left([], [make_failed_run("b", "unsupported", gpus=2)])] == [False]


def test_a_failure_on_both_sides_does_not_count():
    for before, after in (("failed", "failed"), ("oom", "timeout"), ("unsupported", "unsupported")):
        (one,) = left([make_failed_run("a", before, gpus=2)], [make_failed_run("b", after, gpus=2)])
        assert not one.failed and one.reason == f"{after}: failed as configured (in A too)"
    (one,) = left([make_failed_run("a", "unsupported", gpus=2)], [make_failed_run("b", gpus=2)])
    assert one.failed


def test_the_same_failed_run_does_not_count():
    runs = [*OK_2, make_failed_run("a", gpus=2)]
    actual = compare(runs, runs, threshold=0.0)
    assert actual.status == "ok" and [one.failed for one in actual.unmatched] == [False]


def test_a_failure_in_the_base_is_listed():
    (one,) = left([make_failed_run("a", gpus=2)], make_runs("b", [0.1], gpus=2))
    assert (one.side, one.reason, one.failed) == ("A", "failed in A: failed as configured", False)


def test_an_ok_run_without_a_figure():
    (one,) = left(OK_2, make_runs("b", [0.0], gpus=2))
    assert one.failed and one.reason == "nothing was measured"


def test_rows_that_cannot_be_merged_are_listed():
    steps = [*make_runs("a", [0.1], options={"bucket_cap_mb": 1.0}), *make_runs("a", [0.2])]
    actual = compare(steps, make_runs("b", [0.1]), ignore=["strategy.options.bucket_cap_mb"])
    reported = [one.reason for one in actual.unmatched if one.side == "A"]
    assert reported == ["without strategy.options.bucket_cap_mb several rows are one: 1, 25"]
    assert actual.refusal == reported[0]


def test_a_row_that_several_values_lack_is_listed_once():
    actual = [*make_runs("a", [0.1]), *make_runs("b", [0.1], **train_settings(precision="tf32")),
             *make_runs("c", [0.1], **train_settings(precision="bfloat16")), make_failed_run("a", gpus=2)]  # fmt: skip
    reported = compare_by(actual, "train.precision", base="tf32", threshold=0.0).unmatched
    assert [(one.side, one.run_id) for one in reported] == [("float32", "a-ddp-2-failed")]


def test_nothing_of_several_values_pairs():
    actual = [*make_runs("a", [0.1]), *make_runs("b", [0.1], gpus=2, **train_settings(precision="tf32")),
             *make_runs("c", [0.1], gpus=2, **train_settings(precision="bfloat16"))]  # fmt: skip
    reported = compare_by(actual, "train.precision", base="float32")
    assert (
        reported.refusal
        == "nothing in float32 pairs with the others: closest rows differ in gpus: 1 and 2; --ignore gpus pairs them"
    )
