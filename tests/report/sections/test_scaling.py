"""Scaling curves of a report: the frame's figures, ideal lines, and what is never in one chart."""

import pandas as pd

from scalebench.report.document import Chart, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import scaling
from tests.builders import sweeps
from tests.report.section_blocks import (
    check_points,
    get_block,
    get_series,
    select_blocks,
    write_report_data,
)


def test_self_is_shown_only_where_it_differs_much(tmp_path):
    runs = [sweeps.run("bare_torch", 1), *(sweeps.run("ddp_gloo", n) for n in (1, 2, 4))]
    report_data = write_report_data(tmp_path, runs)
    assert "slope, self" in get_block(scaling.section(report_data), Table, "scaling-slopes").columns
    report_data.pooled["speedup_self"] = report_data.pooled["speedup_bare"] * 1.04
    report_data.__dict__.pop("curves")  # made of the rows as they were
    assert "slope, self" not in get_block(scaling.section(report_data), Table, "scaling-slopes").columns


def test_a_baseline_of_two_devices_is_half_of_what_it_might_be(tmp_path):
    sweeps.sweep(tmp_path)
    (two,) = [path.parent for path in tmp_path.rglob("result.json") if '"ddp_gloo-2-0"' in path.read_text()]
    report_data = load_report_data([tmp_path], baseline=two)
    chart = get_block(scaling.section(report_data), Chart, "scaling-efficiency-given")
    assert check_points(chart, report_data.pooled, "efficiency_given") == 7
    assert str(report_data.baseline_name) in chart.title and get_series(chart, "ddp_gloo").y[1] == 1
    head = f"slope, {report_data.baseline_name}"
    assert head in get_block(scaling.section(report_data), Table, "scaling-slopes").columns
    report_data.pooled["speedup_given"] = pd.array([pd.NA] * 7, dtype="Float64")
    report_data.__dict__.pop("curves")
    assert not select_blocks(scaling.section(report_data), Chart, "scaling-efficiency-given")
