"""Report data of synthetic sweeps, and how tests find and compare the blocks of a section."""

import io
from html.parser import HTMLParser

from rich.console import Console

from scalebench.report.report_data import load_report_data
from scalebench.report.sections import select_content
from scalebench.report.terminal_table import RunTable
from tests.builders import sweeps


def write_report_data(folder, results=(), **changes):
    """Write these runs, or the usual sweep if there are none, and load them as report data."""
    if results:
        sweeps.write_results(folder, list(results))
    else:
        sweeps.sweep(folder)
    report_data = load_report_data([folder])
    for name, value in changes.items():
        setattr(report_data, name, value)
    return report_data


def build_blocks(make, folder, results=()):
    """Write these runs, or the usual sweep, and return the blocks that `make` makes of them."""
    return select_content(make(write_report_data(folder, results)))


def select_blocks(blocks, kind, id_begins=""):
    return [each for each in blocks if isinstance(each, kind) and getattr(each, "id", "").startswith(id_begins)]


def get_block(blocks, kind, id_begins=""):
    (block,) = select_blocks(blocks, kind, id_begins)
    return block


def cell_texts(table):
    return [[cell.text for cell in row.cells] for row in table.rows]


def show_table(frame, width=80, baseline_name=None, wide=False):
    """Return the terminal's table of these runs without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for part in RunTable(frame, baseline_name).list_parts(width, wide=wide):
        console.print(part, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


class Tags(HTMLParser):
    """All start tags of a page with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]
