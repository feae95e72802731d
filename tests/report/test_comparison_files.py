"""A comparison as JSON, JUnit and Markdown."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from scalebench.comparison import Comparison, compare
from scalebench.report.comparison_text import escape_markup, make_json, make_junit, make_markdown
from tests.launches import failed, machine, made, train

GOLDEN = Path(__file__).parents[1] / "golden" / "comparison.json"
STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]
EVIL = "<script>alert('x')</script> & | `x` [a](http://b) \x1b[31m \x00 \ud800 ]]> \U0001f600"


def found(reason: str = "told to fail") -> Comparison:
    """A regression, a pair without a difference, a failed run, and a row without a partner."""
    a = [one for gpus in (1, 2, 4, 8) for one in made("a", STEADY, gpus=gpus)]
    b = [*made("b", [each * 1.05 for each in STEADY], **machine(driver_version="2")), *made("b", STEADY, gpus=2),
         failed("b", gpus=4, reason=reason)]  # fmt: skip
    return compare(a, b, threshold=0.03)


def rounded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [rounded(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def test_json_is_as_agreed() -> None:
    """Other programs read it: a change of the golden file is one of theirs."""
    assert rounded(json.loads(make_json(found(), 5))) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_json_has_no_infinity() -> None:
    wide = compare(made("a", [1e-150, 1e150, 1.0]), made("b", [1.0, 1e-150, 1e150]))
    (pair,) = json.loads(make_json(wide, 0), parse_constant=pytest.fail)["contrasts"][0]["pairs"]
    assert wide.pairs[0].interval.high == float("inf") and pair["ratio_high"] is None and pair["ratio_low"] == 0.0


def cases(made: str) -> dict[str, ET.Element]:
    return {case.get("name", ""): case for case in ET.fromstring(made).iter("testcase")}


def test_junit_has_a_case_for_each_pair() -> None:
    told = make_junit(found(), 5)
    by_name = cases(told)
    assert {name: [child.tag for child in case] for name, case in by_name.items()} == {
        "ddp gpus=1: B over A": ["failure"],
        "ddp gpus=2: B over A": ["system-out"],
        "ddp gpus=4: B b-ddp-4-failed": ["error"],
        "ddp gpus=8: A": ["skipped"],
    }
    failure = by_name["ddp gpus=1: B over A"].find("failure")
    assert failure.get("type") == "regression" and failure.get("message").startswith("slower: 0.952 [")
    suite = ET.fromstring(told).find("testsuite")
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1"
    }  # fmt: skip
    assert "machine.driver_version" in suite.findtext("system-out")


def test_junit_of_nothing_to_compare() -> None:
    refused = compare(made("a", STEADY), made("b", STEADY, **train(batch_per_device=20)))
    for code, tag in ((4, "error"), (0, "skipped")):
        (child,) = cases(make_junit(refused, code))["pairing"]
        assert child.tag == tag and "train.batch_per_device: 10 and 20" in child.get("message")


def test_junit_without_a_threshold_fails_nothing() -> None:
    told = make_junit(compare(made("a", STEADY), [*made("b", [0.2] * 3), failed("b", gpus=2)]), 0)
    assert {child.tag for case in cases(told).values() for child in case} == {"system-out", "skipped"}


def test_junit_holds_any_text() -> None:
    told = make_junit(found(EVIL), 5).encode("utf-8").decode()
    message = cases(told)["ddp gpus=4: B b-ddp-4-failed"].find("error").get("message")
    assert message == "failed: <script>alert('x')</script> & | `x` [a](http://b) ?[31m ? ? ]]> \U0001f600"


def test_markdown_is_a_table_of_plain_text() -> None:
    lines = make_markdown(found(EVIL)).splitlines()
    assert lines[0].startswith("**failed run: 1 run failed")
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4 and len({row.count(" | ") for row in rows}) == 1
    assert "REGRESSION" in rows[2] and "no difference resolved" in rows[3]
    (told,) = [line for line in lines if line.startswith("- B ddp gpus=4")]
    assert "&lt;script\\>" in told and "\\| \\`x\\` \\[a\\](http\\://b)" in told and "<" not in told
    assert told.encode("utf-8") and "\x1b" not in told


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
def test_markup_is_escaped(text: str, plain: str) -> None:
    assert escape_markup(text) == plain
