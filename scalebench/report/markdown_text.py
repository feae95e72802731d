"""Text of results on its way into Markdown: it stays text, whatever somebody wrote into it. Layer 3.

Rules: GitHub Flavored Markdown Spec 0.29, https://github.github.com/gfm/: backslash escapes (6.1), autolinks (6.9).
"""

from __future__ import annotations

import re

from scalebench.report.html.escaping import clean

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
SPECIAL = re.compile(r"[\\`*\[\]|~$#]")
EDGES = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # within a word, as in ddp_gloo, it is a letter
BEGINS = re.compile(r"^(\d+)([.)](?:\s|$))|^([-+=:])")  # lists, underlines of headings, rows of tables
BREAK = "<!-- -->"  # invisible; what stands apart is no address
ADDRESSES = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w.-])|(?<=mailto)(?=:)|(?<=xmpp)(?=:)", re.IGNORECASE)
FENCE = re.compile(r"`+")


def escape(text: str) -> str:
    """One line that shows `text` in a heading or a cell of a table: no markup, no HTML, no link."""
    line = ADDRESSES.sub("\0", " ".join(str(clean(text)).split()))
    line = SPECIAL.sub(r"\\\g<0>", "".join(ENTITIES.get(sign, sign) for sign in line))
    return EDGES.sub(r"\\_", line).replace("\0", BREAK)


def paragraph(text: str) -> str:
    """The same at the beginning of a line, where a few signs more mean something."""
    return BEGINS.sub(r"\1\\\2\3", escape(text))


def html(text: str) -> str:
    """For the few tags that Markdown has no sign for."""
    return "".join(ENTITIES.get(sign, sign) for sign in " ".join(str(clean(text)).split()))


def fenced(text: str, language: str) -> str:
    """A block of code whose fence is longer than any within it."""
    body = str(clean(text)).replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    longest = max((len(run) for run in FENCE.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(columns: list[str], rows: list[list[str]], right: list[bool]) -> str:
    """Cells are escaped already; `right` says which columns have figures."""
    rule = ["---:" if number else "---" for number in right]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, rule, *rows])
