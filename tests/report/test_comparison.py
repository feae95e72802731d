"""Comparisons as text, JSON, JUnit XML, Markdown and charts.

After a wanted change, `python -m tests.report.test_comparison` writes golden/comparison.* anew. Other programs read the
JSON and the XML: a change of these is one of theirs.
"""

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scalebench.analysis.comparison import compare, compare_by
from scalebench.core.stats.estimates import Estimate
from scalebench.report.comparison import (
    MAX_LINES,
    MAX_PLACES,
    describe_verdict,
    format_comparison,
    format_p,
    format_times,
    list_sentences,
    make_comparison_charts,
    make_json,
    make_junit,
    make_markdown,
)
from tests.builders.comparisons import machine_settings, make_failed_run, make_runs, train_settings
from tests.report.test_golden_reports import simplify

GOLDEN = Path(__file__).parents[1] / "golden"
STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]
SLOW = [each * 1.05 for each in STEADY]
EVIL = "<script>alert('x')</script> & | `x` [a](http://b) \x1b[31m \x00 \ud800 ]]> \U0001f600\n"
KINDS = ("json", "xml", "md", "txt", "charts.json")  # of golden files
LACKING = "no verdict: one repeat, measure.repeats=3 decides"


def make_comparison(reason="failed as configured"):
    """A regression, a pair without a difference, a failed run, and a row without a partner."""
    a = [run for gpus in (1, 2, 4, 8) for run in make_runs("a", STEADY, gpus=gpus)]
    b = [
        *make_runs("b", SLOW, **machine_settings(driver_version="2")),
        *make_runs("b", STEADY, gpus=2),
        make_failed_run("b", gpus=4, reason=reason),
    ]
    return compare(a, b, threshold=0.03)


def refused():
    return compare(make_runs("a", STEADY), make_runs("b", STEADY, **train_settings(batch_per_device=20)))


def make_medians():
    """Six device counts, and as many ratios."""
    return compare_by(
        [run for gpus in range(1, 7) for n, precision in enumerate(("float32", "tf32"))
         for run in make_runs("a", [0.1 / (1 + n * 0.25 * gpus)], gpus=gpus, run_id=f"{n} {gpus}",
                              **train_settings(precision=precision))],
        "train.precision", "float32",
    )  # fmt: skip


def render(kind):
    if kind == "json":
        return json.dumps(simplify(json.loads(make_json(make_comparison(), 5))), indent=1) + "\n"
    if kind == "charts.json":
        return "".join(f"{json.dumps(chart)}\n" for chart in list_charts())
    if kind == "xml":
        return make_junit(make_comparison(EVIL), 5)
    if kind == "md":
        return make_markdown(make_comparison(EVIL))
    one_pair = compare(make_runs("a", STEADY), make_runs("b", SLOW))
    texts = [format_comparison(each) for each in (make_comparison(EVIL), make_medians(), refused(), one_pair)]
    return "\n----\n".join(texts) + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_reads_as_it_did(kind):
    expected = (GOLDEN / f"comparison.{kind}").read_text(encoding="utf-8")
    assert render(kind) == expected


@pytest.mark.parametrize(("b_s", "threshold", "text"), [
    (SLOW, None, "1 slower, at 5 % after Holm over 1 pair"),
    (SLOW, 0.03, "regression: 1 of 1 pairs slower by more than 3 %, most ddp gpus=1"),
    (SLOW, 0.2, "no regression beyond 20 %: 1 slower, at 5 % after Holm over 1 pair"),
    (STEADY, 0.03, "no regression beyond 3 %: 1 no difference resolved, at 5 % after Holm over 1 pair"),
    (STEADY[:2], None, "1 no difference resolved, at 5 % after Holm over 1 pair"),
])  # fmt: skip
def test_the_last_line_is_the_verdict(b_s, threshold, text):
    runs = make_runs("a", STEADY)
    assert describe_verdict(compare(runs, make_runs("b", b_s), threshold=threshold)) == text
    assert describe_verdict(compare(runs, runs, threshold=0.03)) == "no difference: 1 pair, both sides the same runs"


def test_what_is_lacking_is_in_the_last_line_and_nowhere_else():
    def notes(a, b):
        return [line for line in list_sentences(compare(make_runs("a", a), make_runs("b", b))) if "repeat" in line]

    assert notes([0.1], [0.1]) == [f"undecided: {LACKING}"]
    (missing,) = notes(STEADY, STEADY)
    assert missing.startswith("note: repeats of one session: if the machine changed between A and B, ")
    some = compare([*make_runs("a", STEADY), *make_runs("a", [0.1], gpus=2)],
                   [*make_runs("b", SLOW), *make_runs("b", [0.1], gpus=2)])  # fmt: skip
    assert f"note: {LACKING}" in list_sentences(some)
    assert describe_verdict(some) == "1 slower, 1 no verdict, at 5 % after Holm over 1 pair"
    gate = dataclasses.replace(some, threshold=0.3)
    assert (
        describe_verdict(gate)
        == f"too little data: no verdict on 1 of 2 pairs, such as ddp gpus=2: {LACKING.removeprefix('no verdict: ')}"
    )
    ignored = compare(make_runs("a", STEADY), make_runs("b", STEADY, seed=1), ignore=["seed"])
    assert "note: left out of the pairing: seed" in list_sentences(ignored)
    others = [run for gpus in range(2, 40) for run in make_runs("a", [0.1], gpus=gpus)]
    lines = list_sentences(compare([*others, *make_runs("a", [0.1])], make_runs("b", [0.1])))
    assert f"and {38 - MAX_LINES} more rows (--format json has all)" in lines


@pytest.mark.parametrize(("value", "interval", "text"), [
    (0.9524, Estimate(0.9524, 0.94, 0.961), "0.952 [0.940, 0.961]"),
    (12.34, None, "12.3"),
    (1.0, Estimate(1.0, 0.0, float("inf")), "1.000 [0.000, inf]"),
    (12345.6, None, "12,346"),
])  # fmt: skip
def test_ratios(value, interval, text):
    assert format_times(value, interval) == text
    assert [format_p(p) for p in (None, 0.0001, 0.0123, 1.0)] == ["", "< 0.001", "0.012", "1.000"]


def test_json_has_no_infinity():
    wide = compare(make_runs("a", [1e-90, 1e90]), make_runs("b", [1e90, 1e-90]))
    (pair,) = json.loads(make_json(wide, 0), parse_constant=pytest.fail)["contrasts"][0]["pairs"]
    assert wide.pairs[0].interval.high == float("inf") and pair["ratio_high"] is None and pair["ratio_low"] == 0.0


def list_cases(junit):
    return [(case.get("name"), child) for case in ET.fromstring(junit).iter("testcase") for child in case]


def test_junit_of_nothing_to_compare_and_without_a_threshold():
    for code, tag in ((4, "error"), (0, "skipped")):
        child = dict(list_cases(make_junit(refused(), code)))["pairing"]
        assert child.tag == tag and "train.batch_per_device: 10 and 20" in child.get("message")
    slow = compare(make_runs("a", STEADY), [*make_runs("b", [0.2] * 3), make_failed_run("b", gpus=2)])
    assert {child.tag for _, child in list_cases(make_junit(slow, 0))} == {"system-out", "skipped"}


def compare_formats(*strategies, gpus=(1, 2), repeats=3):
    """nchw is faster than nhwc by a quarter; the two of one configuration take turns."""
    runs = []
    for side, name, factor in (("a", "nchw", 0.8), ("b", "nhwc", 1.0)):
        for strategy in strategies:
            for count in gpus:
                block_s = [each * factor for each in STEADY[:repeats]]
                runs += make_runs(side, block_s, strategy, count, **train_settings(data_format=name))
    return compare_by(runs, "train.data_format", "nhwc")


def list_charts():
    """Return those of formats, of two sides, of numbers of devices and of strategies."""
    counts = [run for count in (1, 2, 4) for run in make_runs("a", STEADY, gpus=count)]
    strategies = [*make_runs("a", STEADY), *make_runs("b", STEADY, "fsdp")]
    compared = [
        compare_formats("ddp", "fsdp"), compare_formats("ddp", gpus=(1,), repeats=1),
        compare(make_runs("a", STEADY), make_runs("b", STEADY)), compare_by(counts, "gpus"),
        compare_by(strategies, "strategy"),
    ]  # fmt: skip
    return [simplify(chart) for each in compared for chart in make_comparison_charts(each)]


def test_charts_of_nothing_and_of_too_many_places():
    assert make_comparison_charts(compare_by(make_runs("a", STEADY), "train.data_format")) == []
    strategies = [f"s{number}" for number in range(MAX_PLACES + 1)]
    chart = make_comparison_charts(compare_formats(*strategies, gpus=(1,), repeats=1))[0]
    assert len(chart.series[0].x) == MAX_PLACES and f"the first {MAX_PLACES} of {MAX_PLACES + 1}" in chart.title


if __name__ == "__main__":
    for each in KINDS:
        (GOLDEN / f"comparison.{each}").write_text(render(each), encoding="utf-8")
