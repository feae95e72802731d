"""Tables and texts as GitHub Markdown, for a pull request or an issue.

Texts of results stay text, whatever they contain. Rules: GitHub Flavored Markdown Spec 0.29,
https://github.github.com/gfm/: backslash escapes (6.1), autolinks (6.9).
"""

from __future__ import annotations

import re
from html import escape as escape_tags

from scalebench.core.untrusted import clean_line, clean_text
from scalebench.report import document as doc

SPECIAL = re.compile(r"[\\`*\[\]|~$#]")
EDGE_UNDERSCORES = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # within a word, as in ddp_gloo, it is a letter
LINE_STARTS = re.compile(r"^(\d+)([.)](?:\s|$))|^([-+=:])")  # lists, underlines of headings, rows of tables
BREAK = "<!-- -->"  # It is invisible, and text that it splits is not an address.
ADDRESSES = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w.-])|(?<=mailto)(?=:)|(?<=xmpp)(?=:)", re.IGNORECASE)
FENCE = re.compile(r"`+")


def render_table(table: doc.Table) -> str:
    """Render the columns and rows of a table."""
    rows = [[escape(cell.text) for cell in row.cells] for row in table.rows]
    return make_table(list(map(escape, table.columns)), rows, [name in table.numeric for name in table.columns])


def escape(text: str) -> str:
    """Return one line that shows `text` in a heading or a cell of a table: without markup, HTML and links."""
    line = ADDRESSES.sub("\0", clean_line(text))
    line = escape_tags(SPECIAL.sub(r"\\\g<0>", line), quote=False)
    return EDGE_UNDERSCORES.sub(r"\\_", line).replace("\0", BREAK)


def escape_paragraph(text: str) -> str:
    """Escape a text at the beginning of a line, where more characters have a meaning."""
    return LINE_STARTS.sub(r"\1\\\2\3", escape(text))


def fence(text: str, language: str) -> str:
    """Return a block of code whose fence is longer than any within it."""
    body = clean_text(text).rstrip("\n")
    longest = max((len(run) for run in FENCE.findall(body)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{body}\n{marks}"


def make_table(columns: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    """Make a table of cells that are already escaped."""
    rule = ["---:" if number else "---" for number in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, rule, *rows])
