"""Scaling curves of a report: the frame's figures, ideal lines, and what is never in one chart."""

import pandas as pd
import pytest

from scalebench.core.spec import HardwareSpec
from scalebench.report.document import Chart, Paragraph, Table, describe_single_group
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import scaling
from tests.builders import sweeps
from tests.report.section_blocks import (
    build_section,
    check_points,
    get_block,
    get_series,
    list_ids,
    select_blocks,
    write_report_data,
)


def test_curves_are_the_frames_figures(tmp_path):
    report_data = write_report_data(tmp_path)
    section = scaling.section(report_data)
    throughput = get_block(section, Chart, "scaling-throughput")
    assert check_points(throughput, report_data.pooled, "throughput_samples_per_s", "throughput") == 7
    assert len(get_series(throughput, "ddp_gloo").low) == len(get_series(throughput, "ddp_gloo").high) == 3
    chart = get_block(section, Chart, "scaling-efficiency-bare")
    assert check_points(chart, report_data.pooled, "efficiency_bare") == 7
    assert "more is better" in chart.caption and "over blocks of one repeat" in chart.caption
    assert [name.split("-1-")[0] for name in list_ids(section)] == [
        "scaling-throughput", "scaling-efficiency-bare", "scaling-speedup-bare", "scaling-slopes"
    ]  # fmt: skip


def test_the_lines_of_the_slope_table_are_drawn_in_the_speedup_chart(tmp_path):
    section = build_section(scaling, tmp_path)
    chart, table = get_block(section, Chart, "scaling-speedup"), get_block(section, Table, "scaling-slopes")
    slopes = {row.cells[0].text: row.cells[1].value for row in table.rows}
    for series in (each for each in chart.series if each.fit):
        rise = (series.fit[-1] - series.fit[0]) / (series.x[-1] - series.x[0])
        assert rise == pytest.approx(slopes.pop(series.name))
        assert sum(series.fit) == pytest.approx(sum(series.y)), "a line with an intercept goes through the middle"
    assert not slopes and get_series(chart, "ideal").y == [1, 2, 4]


def test_self_is_shown_only_where_it_differs_much(tmp_path):
    runs = [sweeps.run("bare_torch", 1), *(sweeps.run("ddp_gloo", n) for n in (1, 2, 4))]
    report_data = write_report_data(tmp_path, runs)
    assert "slope, self" in get_block(scaling.section(report_data), Table, "scaling-slopes").columns
    report_data.pooled["speedup_self"] = report_data.pooled["speedup_bare"] * 1.04
    report_data.__dict__.pop("curves")  # made of the rows as they were
    assert "slope, self" not in get_block(scaling.section(report_data), Table, "scaling-slopes").columns


def test_two_points_have_no_slope_and_without_a_bare_run_the_strategy_itself_is_the_baseline(tmp_path):
    section = build_section(scaling, tmp_path, [sweeps.run("ddp_gloo", n) for n in (1, 2)])
    assert [name.split("-1-")[0] for name in list_ids(section)] == ["scaling-throughput", "scaling-efficiency-self"]


def test_weak_and_strong_hardware_and_models_are_charts_of_their_own(tmp_path):
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"strong-{n}", **sweeps.strong_scaling(40, n)) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"other-{n}", hardware=HardwareSpec("other")) for n in (1, 2)]
    report_data = write_report_data(tmp_path, runs)
    charts = select_blocks(scaling.section(report_data), Chart, "scaling-throughput")
    assert [len(chart.series) for chart in charts] == [1, 1, 1]
    assert len(set(list_ids(scaling.section(report_data)))) == len(list_ids(scaling.section(report_data)))
    headings = [block.text for block in select_blocks(scaling.section(report_data), Paragraph)]
    assert ["strong" in text for text in headings] == [False, True, False]
    assert ["other" in text for text in headings] == [False, False, True]
    assert {chart.title for chart in charts} == {"Throughput"} and describe_single_group(report_data.curves) == ""
    assert "other" in describe_single_group(report_data.curves[2:])
    of_run = report_data.pooled.set_index("run_id")["throughput_samples_per_s"]
    shown = [list(chart.series[0].y) for chart in charts]
    assert shown[0] == [of_run["ddp_gloo-1-0"], of_run["ddp_gloo-2-0"]]
    assert shown[1] == [of_run["strong-1"], of_run["strong-2"]]


def test_jumps_where_another_node_begins(tmp_path):
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2, 4)]
    assert not select_blocks(build_section(scaling, tmp_path / "one", runs), Table, "scaling-nodes")
    runs[2].scale.nodes = 2
    report_data = write_report_data(tmp_path / "two", [*runs, sweeps.run("bare_torch", 1)])
    table = get_block(scaling.section(report_data), Table, "scaling-nodes")
    assert [cell.text for cell in table.rows[0].cells[:3]] == ["ddp_gloo", "2 to 4", "1 to 2"]
    shares = report_data.pooled.set_index("run_id")["efficiency_bare"]
    assert table.rows[0].cells[3].value == shares["ddp_gloo-2-0"]
    assert table.rows[0].cells[4].value == shares["ddp_gloo-4-0"]
    assert table.rows[0].cells[5].value == pytest.approx(0.9, rel=0.01)


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


def test_no_baseline_leaves_throughput_alone(tmp_path):
    section = build_section(scaling, tmp_path, [sweeps.run("ddp_gloo", 4)])
    assert [name.split("-1-")[0] for name in list_ids(section)] == ["scaling-throughput"]
    assert [series.style for series in get_block(section, Chart).series] == ["points"]
    assert "Ideal" not in get_block(section, Chart).caption
