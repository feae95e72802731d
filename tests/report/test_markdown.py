"""The report as Markdown: a text that is known, and nothing of a result that becomes markup."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scalebench.report.document import Axis, Chart, Series
from scalebench.report.markdown import MAX_CHART_ROWS, _render_chart, escape_paragraph, render_document
from tests.report.sample_sections import EVIL, hostile_sections, long_chart, sample_report

GOLDEN = Path(__file__).parents[1] / "golden" / "report.md"
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.names = []
        self.links = []
        self.cells = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("href", "src")]
        if tag == "tr":
            self.cells.append(0)
        elif tag in ("td", "th"):
            self.cells[-1] += 1

    def handle_data(self, data):
        self.text += data


def test_a_report_with_every_block_is_the_golden_file():
    text = render_document(sample_report(), 1234, Path("/runs"), Path("/runs/out"))
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", EVIL)
def test_a_text_stays_text(text):
    page = Tags(MARKDOWN.render(escape_paragraph(text)))
    assert page.names == ["p"]
    cleaned = re.sub("[\x07\ud800]", "\ufffd", text.replace("\x1b[31m", ""))
    assert " ".join(page.text.split()) == " ".join(cleaned.split())
    assert not re.search(r"(?i)://|www\.|@\w|mailto:", escape_paragraph(text))  # what GitHub makes a link


def test_results_cannot_break_the_page():
    page = Tags(MARKDOWN.render(render_document(hostile_sections(), 1, Path("/runs"), Path("/runs"))))
    assert set(page.names) == set(
        "h1 h2 h3 p strong table thead tbody tr th td blockquote pre code a details summary".split()
    )
    assert page.names.count("h1") == 1 and page.names.count("h2") == 2
    assert page.names.count("table") == 2 * 3 * len(EVIL)
    assert set(page.cells) == {2, 3}  # of the tables: two columns; of the charts: x and two series
    assert all(link.startswith("./") and ":" not in link for link in page.links)


def test_gaps_are_empty_cells_and_points_at_the_same_x_share_a_cell():
    chart = Chart(
        "c", "c", Axis("x"), Axis("y"), [Series("a", [2.0, 1.0, 2.0], [None, 1e6, 0.12345]), Series("b", [1.0], [2])]
    )
    assert _render_chart(chart).splitlines()[2:] == ["| 1 | 1,000,000 | 2 |", "| 2 | 0.1235 |  |"]
    chart = Chart("c", "c", Axis("x"), Axis("y"), [Series("a", [1.0, 1.0], [3, 4])])
    assert _render_chart(chart).splitlines()[2:] == ["| 1 | 3, 4 |"]
    # Many points are thinned.
    text = _render_chart(long_chart())
    lines = text.splitlines()
    assert len([line for line in lines if line.startswith("| gpu")]) <= MAX_CHART_ROWS
    assert lines[-1] == "40 of 1,000 points."
    assert "| gpu0 | 0 | 1,400 |" in lines and "| gpu1 | 499.5 | 1,398 |" in lines
