"""Report data of synthetic sweeps, and how tests find and compare the blocks of a section."""

from typing import TypeVar

import pandas as pd

from scalebench.report.document import Chart, Paragraph, Table, Verdict
from scalebench.report.report_data import load_report_data
from scalebench.report.terminal_table import RunTable
from tests.builders import sweeps

BlockType = TypeVar("B", Chart, Table, Paragraph)
SCRIPT = "<script>alert(1)</script>"


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


def build_section(module, folder, results=()):
    """Write these runs, or the usual sweep, and make the section of this module from them."""
    return module.section(write_report_data(folder, results))


def select_blocks(section, kind, id_begins=""):
    blocks = [block for block in section.blocks if isinstance(block, kind)]
    return [block for block in blocks if getattr(block, "id", "").startswith(id_begins)]


def get_block(section, kind, id_begins=""):
    (block,) = select_blocks(section, kind, id_begins)
    return block


def list_ids(section):
    return [block.id for block in section.blocks if isinstance(block, Chart | Table)]


def get_series(chart, name):
    (series_of_name,) = [series for series in chart.series if series.name == name]
    return series_of_name


def get_column(table, head):
    """Return the values of a column by the text of the row's first cells, up to the devices."""
    last = table.columns.index("gpus") if "gpus" in table.columns else 0
    names = [" ".join(cell.text for cell in row.cells[: last + 1]) for row in table.rows]
    assert len(set(names)) == len(names)
    number = table.columns.index(head)
    return {name: row.cells[number].value for name, row in zip(names, table.rows, strict=True)}


def check_points(chart, pooled, name, stem="", x="gpus"):
    """Assert that each point of the curves, which are named by strategy, is the frame's with its limits, and return how
    many points there are."""
    points = 0
    for series in chart.series:
        if series.style in ("ideal", "published"):
            continue
        for position, x_value in enumerate(series.x):
            rows = pooled[(pooled["strategy"] == series.name) & (pooled[x] == x_value) & (pooled["status"] == "ok")]
            (row,) = rows.to_dict("records")
            assert series.y[position] == to_float(row[name])
            if series.low:
                assert (series.low[position], series.high[position]) == tuple(
                    to_float(row[f"{stem or name}_{end}"]) for end in ("low", "high")
                )
            assert series.tags["strategy"] == row["strategy"] and series.tags["hardware"] == row["hardware"]
            points += 1
    return points


def cell_texts(table):
    return [[cell.text for cell in row.cells] for row in table.rows]


def show_table(frame, width=80, baseline_name=None, wide=False):
    """Return the terminal's table of these runs, and that of their trainings, without colour."""
    table = RunTable(frame, baseline_name)
    lines = [*table.list_lines(width, wide=wide), *table.list_training_lines(width, wide)]
    return "".join(f"{line.plain}\n" for line in lines)


def to_float(value):
    return None if pd.isna(value) else float(value)


def block_text(block):
    """Return all text of a block."""
    if isinstance(block, Table):
        cells = [cell.text for row in block.rows for cell in row.cells]
        notes = [text for _, text in block.footnotes]
        return " ".join([block.title, block.caption, *block.columns, *cells, *notes])
    if isinstance(block, Chart):
        return " ".join([block.title, block.caption, *(series.name for series in block.series)])
    if isinstance(block, Verdict):
        return " ".join([block.text, block.reason, block.group, *block.doubts])
    return block.text
