"""Text of results stays text, in scripts, in plotly's own markup, and in links."""

from __future__ import annotations

import json

import pytest

from scalebench.report.document import clean_text, make_relative_link
from scalebench.report.html.plots import escape_plotly
from scalebench.report.html.render import dump_json

NASTY = "</script><script>alert(1)</script><!-- &amp; \u2028 \u2029 ü \ud800"


def test_json_in_a_script_has_no_sign_that_html_knows_and_reads_back() -> None:
    text = dump_json({"name": NASTY, "y": [None, 0.5]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"name": NASTY, "y": [None, 0.5]}


def test_what_is_no_number_is_no_json() -> None:
    with pytest.raises(ValueError):
        dump_json([float("nan")])


def test_plotly_gets_entities() -> None:
    assert escape_plotly("<a href='x'>&amp;</a>") == "&lt;a href='x'&gt;&amp;amp;&lt;/a&gt;"


def test_control_characters_go_and_lines_stay() -> None:
    assert clean_text("\x1b[31mred\x1b[0m\x00\x07\tone\ntwo") == "red\tone\ntwo"
    assert clean_text("half \ud800 a sign").encode() == b"half ? a sign"
    assert clean_text(3) == 3


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
    assert make_relative_link(link, "/sweep", "/sweep") == expected


def test_a_page_elsewhere_links_back() -> None:
    assert make_relative_link("0/trace.json", "/data/sweep", "/reports/today") == "./../../data/sweep/0/trace.json"
