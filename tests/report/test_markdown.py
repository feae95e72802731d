"""Nothing of a result becomes markup."""

import re

import pytest
from markdown_it import MarkdownIt

from scalebench.report.markdown import escape_paragraph
from tests.report.sample_sections import EVIL
from tests.report.section_blocks import Tags

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


@pytest.mark.parametrize("text", EVIL)
def test_a_text_stays_text(text):
    page = Tags(MARKDOWN.render(escape_paragraph(text)))
    assert page.found == [("p", {})]
    cleaned = re.sub("[\x07\ud800]", "\ufffd", text.replace("\x1b[31m", ""))
    assert " ".join(page.text.split()) == " ".join(cleaned.split())
    assert not re.search(r"(?i)://|www\.|@\w|mailto:", escape_paragraph(text))  # what GitHub makes a link
