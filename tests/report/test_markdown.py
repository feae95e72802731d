"""The report as Markdown: a text that is known, and nothing of a result that becomes markup."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scalebench.report.document import Axis, Chart, Series
from scalebench.report.markdown import MAX_CHART_ROWS, _render_chart, escape_paragraph, render_document
from tests.report.sample_sections import EVIL, hostile_sections, long_chart, sample_report
from tests.report.section_blocks import Tags

GOLDEN = Path(__file__).parents[1] / "golden" / "report.md"
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def test_a_report_with_every_block_is_the_golden_file():
    text = render_document(sample_report(), 1234, Path("/runs"), Path("/runs/out"))
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", EVIL)
def test_a_text_stays_text(text):
    page = Tags(MARKDOWN.render(escape_paragraph(text)))
    assert page.found == [("p", {})]
    cleaned = re.sub("[\x07\ud800]", "\ufffd", text.replace("\x1b[31m", ""))
    assert " ".join(page.text.split()) == " ".join(cleaned.split())
    assert not re.search(r"(?i)://|www\.|@\w|mailto:", escape_paragraph(text))  # what GitHub makes a link


def test_results_cannot_break_the_page():
    text = MARKDOWN.render(render_document(hostile_sections(), 1, Path("/runs"), Path("/runs")))
    page = Tags(text)
    known = "h1 h2 h3 p strong table thead tbody tr th td blockquote pre code a details summary"
    assert {name for name, _ in page.found} == set(known.split())
    assert len(page.all("h1")) == 1 and len(page.all("h2")) == 2 and len(page.all("table")) == 2 * 3 * len(EVIL)
    # Of the tables: two columns; of the charts: x and two series.
    assert {len(re.findall("<t[dh][ >]", row)) for row in text.split("<tr>")[1:]} == {2, 3}
    links = [attributes["href"] for attributes in page.all("a")]
    assert links and all(link.startswith("./") and ":" not in link for link in links)


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
