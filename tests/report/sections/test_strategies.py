"""The table of configurations in a report: the terminal's, with the frame's figures behind its cells."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scalebench.core.spec import HardwareSpec
from scalebench.report import tables
from scalebench.report.document import MAX_ROWS, Code, Paragraph, Table
from scalebench.report.report_data import ReportData, load_report_data
from scalebench.report.sections import strategies
from tests.builders import sweeps
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    build_section,
    get_block,
    get_column,
    select_blocks,
    to_float,
    write_report_data,
)

FIGURES = {
    "samples/s (95 %)": "throughput_samples_per_s",
    "speedup bare": "speedup_bare",
    "speedup self": "speedup_self",
    "efficiency bare": "efficiency_bare",
    "efficiency self": "efficiency_self",
    "epoch": "epoch_s",
}


def test_cells_are_the_frames_figures_as_the_terminal_shows_them(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    report_data.pooled = report_data.pooled.iloc[::-1]  # in whatever order they are found
    table = get_block(strategies.section(report_data), Table)
    rows = {f"{row['strategy']} {row['gpus']}": row for row in report_data.pooled.to_dict("records")}
    for head, name in FIGURES.items():
        assert get_column(table, head) == {key: to_float(row[name]) for key, row in rows.items()}
        assert head in table.numeric
    place = table.columns.index("samples/s (95 %)")
    assert [row.cells[place].text for row in table.rows] == [
        tables.format_throughput(row) for row in report_data.pooled.sort_values(tables.SORT_COLUMNS).to_dict("records")
    ]
    assert get_column(table, "overhead at 1") == {
        key: to_float(row["overhead_share"]) if key in ("ddp_gloo 1", "horovod_gloo 1") else None
        for key, row in rows.items()
    }
    assert "Model materials_cnn, hardware cpu, scaling weak. Intervals: 95 %, over blocks" in table.caption
    assert "repeats" not in table.columns and not {"strategy", "status", "remarks"} & table.numeric
    assert table.rows[1].tags == {"model": "materials_cnn", "strategy": "ddp_gloo", "hardware": "cpu"}


def test_repeats_are_counted(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path, repeats=3)
    report_data = load_report_data([tmp_path])
    table = get_block(strategies.section(report_data), Table)
    assert set(get_column(table, "repeats").values()) == {3} and len(table.rows) == 7
    assert "over 3 repeats" in table.caption


def test_what_rows_differ_in_is_a_column(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", 2), sweeps.run("ddp_gloo", 2, run_id="s", **sweeps.strong_scaling(40, 2))]
    table = get_block(build_section(strategies, tmp_path, runs), Table)
    assert table.columns[0] == "scaling" and {row.cells[0].text for row in table.rows} == {"weak", "strong"}


def test_the_given_baseline_is_in_the_head(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    for name in ("speedup", "efficiency"):
        for end in ("", "_low", "_high"):
            report_data.pooled[f"{name}_given{end}"] = report_data.pooled[f"{name}_bare{end}"]
    assert not any("against" in head for head in get_block(strategies.section(report_data), Table).columns)
    report_data.baseline_name = "ddp on alpha"
    table = get_block(strategies.section(report_data), Table)
    assert get_column(table, "speedup over ddp on alpha") == get_column(table, "speedup bare")
    assert "efficiency over ddp on alpha" in table.columns
    report_data.pooled["speedup_given"] = pd.array([pd.NA] * 7, dtype="Float64")  # it can be compared with none of them
    assert not any("against" in head for head in get_block(strategies.section(report_data), Table).columns)


def test_a_missing_baseline_comes_with_its_command(tmp_path: Path) -> None:
    section = build_section(strategies, tmp_path, [sweeps.run("ddp_gloo", 4)])
    assert get_block(section, Code).text == "python -m scalebench --multirun strategy=ddp_gloo gpus=4"
    (warning,) = select_blocks(section, Paragraph)
    assert warning.kind == "warning" and warning.text.startswith("1 row lacks a baseline")
    table = get_block(section, Table)
    assert table.rows[0].cells[-1].text == "no bare and self baseline"
    assert get_column(table, "speedup bare") == {"ddp_gloo 4": None}
    assert select_blocks(build_section(strategies, tmp_path / "whole"), Code) == []


def test_failed_rows_are_rows(tmp_path: Path) -> None:
    section = build_section(strategies, tmp_path, [sweeps.failed_run(), sweeps.failed_run(status="oom")])
    table = get_block(section, Table)
    assert [row.cells[-2].text for row in table.rows] == ["failed", "oom"]
    assert [row.cells[-1].text for row in table.rows] == ["told to fail"] * 2
    assert set(
        get_column(
            get_block(build_section(strategies, tmp_path / "lone", [sweeps.failed_run()]), Table), "epoch"
        ).values()
    ) == {None}
    assert select_blocks(section, Code) == []


def test_beyond_a_table_the_best_of_each_kind_are_kept(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path, [sweeps.run("ddp_gloo", 1), sweeps.failed_run()])
    ok, failed = report_data.pooled.iloc[[0]], report_data.pooled.iloc[[1]]
    many = pd.concat([failed, *[ok] * MAX_ROWS, ok], ignore_index=True)
    many["throughput_samples_per_s"] = pd.array([pd.NA, *range(1, MAX_ROWS + 2)], dtype="Float64")
    large = ReportData(report_data.paths, many, many)
    section = strategies.section(large)
    (table,) = select_blocks(section, Table)
    place = table.columns.index("samples/s (95 %)")
    assert sorted(float(row.cells[place].value or 0) for row in table.rows) == list(range(2, MAX_ROWS + 2))
    assert select_blocks(section, Paragraph)[0].text.startswith(
        f"{MAX_ROWS + 2} configurations are more than a table can show"
    )


def test_nothing_at_all(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    assert strategies.section(ReportData([], report_data.frame.iloc[:0], report_data.pooled.iloc[:0])) is None


def test_text_stays_text(tmp_path: Path) -> None:
    runs = [sweeps.run("bare_torch", 1), sweeps.failed_run(SCRIPT, reason=SCRIPT, hardware=HardwareSpec(SCRIPT))]
    table = get_block(build_section(strategies, tmp_path, runs), Table)
    assert block_text(table).count(SCRIPT) == 3
    assert any(row.tags["strategy"] == SCRIPT for row in table.rows)
