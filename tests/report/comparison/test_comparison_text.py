"""Comparisons as text, JSON, JUnit XML and Markdown."""

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scalebench.analysis.comparison import compare, compare_by
from scalebench.core.stats.estimates import Estimate
from scalebench.report.comparison.comparison_text import (
    MAX_LINES,
    describe_verdict,
    escape_markup,
    format_comparison,
    format_p,
    format_speed_ratio,
    list_sentences,
    make_json,
    make_junit,
    make_markdown,
)
from tests.builders.comparisons import machine_settings, make_failed_run, make_runs, train_settings

STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]
SLOW = [each * 1.05 for each in STEADY]


def make_regression():
    a, same = [*make_runs("a", STEADY), *make_runs("a", STEADY, gpus=2)], make_runs("b", STEADY, gpus=2)
    return compare(a, [*make_runs("b", SLOW, **machine_settings(driver_version="2")), *same], threshold=0.03)


def test_the_table_has_figures_and_the_sentences_end_with_the_verdict():
    lines, (pair, other) = format_comparison(make_regression()).splitlines(), make_regression().pairs
    assert lines[0] == "B over A"
    for word in ("strategy", "gpus", "A samples/s", "B samples/s", "B / A (95 %)", "p (Holm)", "test", "verdict"):
        assert word in lines[2]
    assert f"{pair.ratio:.3f} [{pair.interval.low:.3f}, {pair.interval.high:.3f}]" in lines[4]
    assert "Welch's t, 5 and 5 repeats" in lines[4] and lines[4].endswith("REGRESSION")
    assert f"{other.ratio:.3f} [" in lines[5] and lines[5].endswith("no difference resolved")
    sentences = list_sentences(make_regression())
    assert sentences[0].startswith("B over A: median of 2 pairs ")
    assert "also differs, B over A: machine.driver_version: none, 2 (1 of 2 pairs)" in sentences
    assert sentences[-1] == "regression: 1 of 2 pairs slower by more than 3 %, most ddp gpus=1"


@pytest.mark.parametrize(
    ("b_s", "threshold", "text"),
    [
        (SLOW, None, "1 slower, at 5 % after Holm over 1 pair"),
        (SLOW, 0.2, "no regression beyond 20 %: 1 slower, at 5 % after Holm over 1 pair"),
        (STEADY, 0.03, "no regression beyond 3 %: 1 no difference resolved, at 5 % after Holm over 1 pair"),
        (STEADY[:2], None, "1 no difference resolved, at 5 % after Holm over 1 pair"),
    ],
)
def test_the_last_line_is_the_verdict(b_s, threshold, text):
    assert describe_verdict(compare(make_runs("a", STEADY), make_runs("b", b_s), threshold=threshold)) == text


def test_the_same_runs_and_sides_that_cannot_be_compared_have_a_reason():
    runs = make_runs("a", STEADY)
    assert describe_verdict(compare(runs, runs, threshold=0.03)) == "no difference: 1 pair, both sides the same runs"
    text = format_comparison(compare(runs, make_runs("b", STEADY, **train_settings(batch_per_device=20))))
    assert text.splitlines()[-1].startswith("not comparable: nothing in A pairs with B: closest rows differ in train.")


def test_a_failed_run_is_named():
    comparison = compare(
        [*make_runs("a", STEADY), *make_runs("a", STEADY, gpus=2)],
        [*make_runs("b", SLOW), make_failed_run("b", gpus=2)],
        threshold=0.0,
    )
    assert describe_verdict(comparison) == "failed run: 1 run failed, such as ddp gpus=2: failed: failed as configured"
    assert "B ddp gpus=2: failed: failed as configured" in list_sentences(comparison)


def test_what_is_lacking_is_in_the_last_line_and_nowhere_else():
    def notes(a, b):
        return [line for line in list_sentences(compare(make_runs("a", a), make_runs("b", b))) if "repeat" in line]

    lacking = "no verdict: one repeat, measure.repeats=3 decides"
    assert notes([0.1], [0.1]) == [f"undecided: {lacking}"]
    (missing,) = notes(STEADY, STEADY)
    assert missing.startswith("note: repeats of one session: if the machine changed between A and B, ")
    some = compare([*make_runs("a", STEADY), *make_runs("a", [0.1], gpus=2)],
                   [*make_runs("b", SLOW), *make_runs("b", [0.1], gpus=2)])  # fmt: skip
    assert f"note: {lacking}" in list_sentences(some)
    assert describe_verdict(some) == "1 slower, 1 no verdict, at 5 % after Holm over 1 pair"
    gate = dataclasses.replace(some, threshold=0.3)
    assert describe_verdict(gate) == f"too little data: 1 of 2 pairs without a verdict, such as ddp gpus=2: {lacking}"
    ignored = compare(make_runs("a", STEADY), make_runs("b", STEADY, seed=1), ignore=["seed"])
    assert "note: left out of the pairing: seed" in list_sentences(ignored)


def test_the_median_has_range_and_interval():
    runs = [
        run
        for gpus in range(1, 7)
        for n, precision in enumerate(("float32", "tf32"))
        for run in make_runs(
            "a", [0.1 / (1 + n * 0.25 * gpus)], gpus=gpus, run_id=f"{n} {gpus}", **train_settings(precision=precision)
        )
    ]
    sentence = list_sentences(compare_by(runs, "train.precision", "float32"))[0]
    assert sentence.startswith(
        "tf32 over float32: median of 6 pairs 1.875 [1.250, 2.500] (95 % of the median of such pairs"
    )
    assert sentence.endswith(", sign test), from 1.250 to 2.500")


def test_long_lists_are_cut():
    others = [run for gpus in range(2, 40) for run in make_runs("a", [0.1], gpus=gpus)]
    lines = list_sentences(compare([*others, *make_runs("a", [0.1])], make_runs("b", [0.1])))
    assert f"and {38 - MAX_LINES} more rows (--format json has all)" in lines


def test_nothing_of_a_record_moves_the_cursor_or_is_markup():
    evil = "\x1b[31m[red]\nx\ud800\x00"
    comparison = compare(
        [*make_runs("a", STEADY)], [*make_runs("b", STEADY), make_failed_run("b", gpus=2, reason=evil)], threshold=0.0
    )
    text = format_comparison(comparison)
    assert "[red] x\ufffd\ufffd" in text
    assert "\x1b" not in text and text.encode("utf-8")


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.9524, Estimate(0.9524, 0.94, 0.961), "0.952 [0.940, 0.961]"),
        (12.34, None, "12.3"),
        (1.0, Estimate(1.0, 0.0, float("inf")), "1.000 [0.000, inf]"),
        (12345.6, None, "12,346"),
    ],
)
def test_ratios(value, interval, text):
    assert format_speed_ratio(value, interval) == text
    assert [format_p(p) for p in (None, 0.0001, 0.0123, 1.0)] == ["", "< 0.001", "0.012", "1.000"]


GOLDEN = Path(__file__).parents[2] / "golden" / "comparison.json"
EVIL = "<script>alert('x')</script> & | `x` [a](http://b) \x1b[31m \x00 \ud800 ]]> \U0001f600"


def make_comparison(reason="failed as configured"):
    """A regression, a pair without a difference, a failed run, and a row without a partner."""
    a = [run for gpus in (1, 2, 4, 8) for run in make_runs("a", STEADY, gpus=gpus)]
    b = [
        *make_runs("b", SLOW, **machine_settings(driver_version="2")),
        *make_runs("b", STEADY, gpus=2),
        make_failed_run("b", gpus=4, reason=reason),
    ]
    return compare(a, b, threshold=0.03)


def round_floats(tree):
    if isinstance(tree, dict):
        return {key: round_floats(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [round_floats(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def test_json_is_as_agreed():
    """Other programs read it: a change of the golden file is one of theirs."""
    assert round_floats(json.loads(make_json(make_comparison(), 5))) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_json_has_no_infinity():
    wide = compare(make_runs("a", [1e-90, 1e90]), make_runs("b", [1e90, 1e-90]))
    (pair,) = json.loads(make_json(wide, 0), parse_constant=pytest.fail)["contrasts"][0]["pairs"]
    assert wide.pairs[0].interval.high == float("inf") and pair["ratio_high"] is None and pair["ratio_low"] == 0.0


def cases_by_name(junit):
    return {case.get("name", ""): case for case in ET.fromstring(junit).iter("testcase")}


def test_junit_has_a_case_for_each_pair():
    junit = make_junit(make_comparison(), 5)
    by_name = cases_by_name(junit)
    assert {name: [child.tag for child in case] for name, case in by_name.items()} == {
        "ddp gpus=1: B over A": ["failure"],
        "ddp gpus=2: B over A": ["system-out"],
        "ddp gpus=4: B b-ddp-4-failed": ["error"],
        "ddp gpus=8: A": ["skipped"],
    }
    failure = by_name["ddp gpus=1: B over A"].find("failure")
    assert failure.get("type") == "regression" and failure.get("message").startswith("slower: 0.952 [")
    suite = ET.fromstring(junit).find("testsuite")
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1"
    }  # fmt: skip
    assert "machine.driver_version" in suite.findtext("system-out")


def test_junit_of_nothing_to_compare():
    refused = compare(make_runs("a", STEADY), make_runs("b", STEADY, **train_settings(batch_per_device=20)))
    for code, tag in ((4, "error"), (0, "skipped")):
        (child,) = cases_by_name(make_junit(refused, code))["pairing"]
        assert child.tag == tag and "train.batch_per_device: 10 and 20" in child.get("message")


def test_junit_without_a_threshold_fails_nothing():
    junit = make_junit(compare(make_runs("a", STEADY), [*make_runs("b", [0.2] * 3), make_failed_run("b", gpus=2)]), 0)
    assert {child.tag for case in cases_by_name(junit).values() for child in case} == {"system-out", "skipped"}


def test_junit_holds_any_text():
    junit = make_junit(make_comparison(EVIL), 5).encode("utf-8").decode()
    message = cases_by_name(junit)["ddp gpus=4: B b-ddp-4-failed"].find("error").get("message")
    assert message == "failed: <script>alert('x')</script> & | `x` [a](http://b)  \ufffd \ufffd ]]> \U0001f600"


def test_markdown_is_a_table_of_plain_text():
    lines = make_markdown(make_comparison(EVIL)).splitlines()
    assert lines[0].startswith("**failed run: 1 run failed")
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4 and len({row.count(" | ") for row in rows}) == 1
    assert "REGRESSION" in rows[2] and "no difference resolved" in rows[3]
    (line_of_failure,) = [line for line in lines if line.startswith("- B ddp gpus=4")]
    assert (
        "&lt;script\\>" in line_of_failure
        and "\\| \\`x\\` \\[a\\](http\\://b)" in line_of_failure
        and "<" not in line_of_failure
    )
    assert line_of_failure.encode("utf-8") and "\x1b" not in line_of_failure


PLAIN = {
    "a_b*c": "a\\_b\\*c",
    "a\nb": "a b",
    "- x": "\\- x",
    "a - b": "a - b",
    "&lt;": "&amp;lt;",
    "a:smile: b: c": "a\\:smile: b: c",
    "@me #1 ~x~": "\\@me \\#1 \\~x\\~",
    "1.000 [0.9, 1.1]": "1.000 \\[0.9, 1.1\\]",
    "a\\|b": "a\\\\\\|b",
}


@pytest.mark.parametrize(("text", "plain"), PLAIN.items())
def test_markup_is_escaped(text, plain):
    assert escape_markup(text) == plain
