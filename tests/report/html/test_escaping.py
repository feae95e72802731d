"""Text of results stays text, in scripts, in plotly's own markup, and in links."""

from __future__ import annotations

import json

import pytest

from scalebench.report.html.escaping import clean, for_plotly, for_script, relative

NASTY = "</script><script>alert(1)</script><!-- &amp; \u2028 \u2029 ü \ud800"


def test_json_in_a_script_has_no_sign_that_html_knows_and_reads_back() -> None:
    text = for_script({"name": NASTY, "y": [None, 0.5]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"name": NASTY, "y": [None, 0.5]}


def test_what_is_no_number_is_no_json() -> None:
    with pytest.raises(ValueError):
        for_script([float("nan")])


def test_plotly_gets_entities() -> None:
    assert for_plotly("<a href='x'>&amp;</a>") == "&lt;a href=&#39;x&#39;&gt;&amp;amp;&lt;/a&gt;"


def test_control_characters_go_and_lines_stay() -> None:
    assert clean("\x1b[31mred\x1b[0m\x00\x07\tone\ntwo") == "red\tone\ntwo"
    assert clean("half \ud800 a sign").encode() == b"half ? a sign"
    assert clean(3) == 3


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("0/rank0.log", "./0/rank0.log"),
        ("a b/<x>.json", "./a%20b/%3Cx%3E.json"),
        ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
        ("https://example.org/x", "./https%3A/example.org/x"),
        ("//example.org/x", "./example.org/x"),
        ("x.json?a#b", "./x.json%3Fa%23b"),
        ("", "./."),
    ],
)
def test_links_are_files_beside_the_page(link: str, expected: str) -> None:
    assert relative(link, "/sweep", "/sweep") == expected


def test_a_page_elsewhere_links_back() -> None:
    assert relative("0/trace.json", "/data/sweep", "/reports/today") == "./../../data/sweep/0/trace.json"
