"""The table of configurations in a report: the terminal's, with the frame's figures behind its cells."""

import pandas as pd

from scalebench.report.document import MAX_ROWS, Paragraph, Table
from scalebench.report.report_data import ReportData, load_report_data
from scalebench.report.sections.scaling import strategies_section
from tests.builders import sweeps
from tests.report.section_blocks import get_block, get_column, select_blocks, write_report_data

FIGURES = {
    "samples/s (95 %)": "throughput_samples_per_s",
    "speedup bare": "speedup_bare",
    "speedup self": "speedup_self",
    "efficiency bare": "efficiency_bare",
    "efficiency self": "efficiency_self",
    "epoch": "epoch_s",
}


def test_the_given_baseline_is_in_the_head(tmp_path):
    sweeps.sweep(tmp_path)
    report_data = load_report_data([tmp_path], baseline="bare_torch-1-0")
    table = get_block(strategies_section(report_data), Table)
    assert get_column(table, "speedup over bare_torch gpus=1 on cpu") == get_column(table, "speedup bare")
    assert "efficiency over bare_torch gpus=1 on cpu" in table.columns
    report_data.pooled["speedup_given"] = pd.array([pd.NA] * 7, dtype="Float64")  # it can be compared with none of them
    report_data.pooled["efficiency_given"] = report_data.pooled["speedup_given"]
    without = get_block(strategies_section(report_data), Table)
    assert not any(" over " in head for head in without.columns)


def test_beyond_a_table_the_best_of_each_kind_are_kept(tmp_path):
    report_data = write_report_data(tmp_path, [sweeps.run("ddp_gloo", 1), sweeps.failed_run()])
    ok, failed = report_data.pooled.iloc[[0]], report_data.pooled.iloc[[1]]
    many = pd.concat([failed, *[ok] * MAX_ROWS, ok], ignore_index=True)
    many["throughput_samples_per_s"] = pd.array([pd.NA, *range(1, MAX_ROWS + 2)], dtype="Float64")
    large = ReportData(report_data.paths, many, many)
    section = strategies_section(large)
    (table,) = select_blocks(section, Table)
    place = table.columns.index("samples/s (95 %)")
    assert sorted(float(row.cells[place].value or 0) for row in table.rows) == list(range(2, MAX_ROWS + 2))
    assert select_blocks(section, Paragraph)[0].text.startswith(
        f"{MAX_ROWS + 2} configurations are more than a table can show"
    )


def test_nothing_at_all(tmp_path):
    report_data = write_report_data(tmp_path)
    assert strategies_section(ReportData([], report_data.frame.iloc[:0], report_data.pooled.iloc[:0])) is None
