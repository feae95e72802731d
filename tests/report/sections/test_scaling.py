"""Scaling curves of a report: the frame's figures, ideal lines, and what is never in one chart."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scalebench.core.spec import HardwareSpec
from scalebench.report.document import Chart, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import scaling
from tests.builders import sweeps
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    build_section,
    check_points,
    get_block,
    get_column,
    get_series,
    list_ids,
    select_blocks,
    write_report_data,
)


def test_curves_are_the_frames_figures(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    section = scaling.section(report_data)
    throughput = get_block(section, Chart, "scaling-throughput")
    assert check_points(throughput, report_data.pooled, "throughput_samples_per_s", "throughput") == 7
    assert len(get_series(throughput, "ddp_gloo").low) == len(get_series(throughput, "ddp_gloo").high) == 3
    for name in ("speedup", "efficiency"):
        for kind in ("bare", "self"):  # the overhead at one device is five per cent
            chart = get_block(section, Chart, f"scaling-{name}-{kind}")
            assert check_points(chart, report_data.pooled, f"{name}_{kind}") == 7
            assert "more is better" in chart.caption and "over blocks of one repeat" in chart.caption
    assert len(set(list_ids(section))) == len(list_ids(section)) == 6


def test_ideal_lines(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    section = scaling.section(report_data)
    bare = float(report_data.pooled.set_index("run_id").at["bare_torch-1-0", "throughput_samples_per_s"])
    ideal = get_series(get_block(section, Chart, "scaling-throughput"), "ideal of bare_torch")
    assert (list(ideal.x), list(ideal.y)) == ([1, 2, 4], [bare, 2 * bare, 4 * bare])
    assert get_series(get_block(section, Chart, "scaling-speedup-bare"), "ideal").y == [1, 2, 4]
    assert get_series(get_block(section, Chart, "scaling-efficiency-bare"), "ideal").y == [1, 1, 1]
    assert ideal.style == "ideal" and set(ideal.tags) == {"model", "hardware"}


def test_self_is_drawn_only_where_it_differs_much(tmp_path: Path) -> None:
    runs = [sweeps.run("bare_torch", 1), *(sweeps.run("ddp_gloo", n) for n in (1, 2))]
    report_data = write_report_data(tmp_path, runs)
    assert select_blocks(scaling.section(report_data), Chart, "scaling-speedup-self")
    report_data.pooled["speedup_self"] = report_data.pooled["speedup_bare"] * 1.04
    report_data.__dict__.pop("curves")  # made of the rows as they were
    assert not select_blocks(scaling.section(report_data), Chart, "scaling-speedup-self")
    assert "slope, self" not in get_block(scaling.section(report_data), Table, "scaling-slopes").columns


def test_the_caption_names_intervals_over_repeats(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path / "x", repeats=3)
    report_data = load_report_data([tmp_path])
    chart = get_block(scaling.section(report_data), Chart, "scaling-speedup-bare")
    assert "Intervals: 95 %, over 3 repeats." in chart.caption
    assert check_points(chart, report_data.pooled, "speedup_bare") == 7


def test_weak_and_strong_hardware_and_models_are_charts_of_their_own(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"strong-{n}", **sweeps.strong_scaling(40, n)) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"other-{n}", hardware=HardwareSpec("other")) for n in (1, 2)]
    report_data = write_report_data(tmp_path, runs)
    charts = select_blocks(scaling.section(report_data), Chart, "scaling-throughput")
    assert [len(chart.series) for chart in charts] == [1, 1, 1]
    assert len(set(list_ids(scaling.section(report_data)))) == len(list_ids(scaling.section(report_data)))
    assert ["strong" in chart.title for chart in charts] == [False, True, False]
    assert ["other" in chart.title for chart in charts] == [False, False, True]
    of_run = report_data.pooled.set_index("run_id")["throughput_samples_per_s"]
    shown = [list(chart.series[0].y) for chart in charts]
    assert shown[0] == [of_run["ddp_gloo-1-0"], of_run["ddp_gloo-2-0"]]
    assert shown[1] == [of_run["strong-1"], of_run["strong-2"]]


def test_the_table_of_slopes(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path, min_efficiency=0.75)
    table = get_block(scaling.section(report_data), Table, "scaling-slopes")
    rows = report_data.pooled[report_data.pooled["strategy"] == "ddp_gloo"]
    x, y = rows["gpus"].astype(float), rows["speedup_bare"].astype(float)
    fitted = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    assert get_column(table, "slope, bare")["ddp_gloo"] == pytest.approx(fitted)
    cells = {row.cells[0].text: [cell.text for cell in row.cells] for row in table.rows}
    assert cells["ddp_gloo"][1].startswith(f"{fitted:.2f} [") and cells["ddp_gloo"][2] == "1, 2, 4"
    assert cells["ddp_gloo"][3] == "4 [4]" and cells["horovod_gloo"][3] == "2 [2]"
    assert cells["bare_torch"][1:3] == ["", ""]
    assert "keeps 75 %, bare" in table.columns


def test_jumps_where_another_node_begins(tmp_path: Path) -> None:
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


def add_given_columns(pooled: pd.DataFrame) -> None:
    """Columns against a baseline of two devices that is as fast as the bare one for each."""
    for end in ("", "_low", "_high"):
        pooled[f"speedup_given{end}"] = pooled[f"speedup_bare{end}"] / 2
        pooled[f"efficiency_given{end}"] = pooled[f"efficiency_bare{end}"]
    pooled["baseline_given_id"] = "there"


def test_the_given_baseline_is_named_and_its_ideal_is_its_own(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    add_given_columns(report_data.pooled)
    assert not select_blocks(scaling.section(report_data), Chart, "scaling-speedup-given")  # it has no name
    report_data.baseline_name = "ddp on alpha"
    chart = get_block(scaling.section(report_data), Chart, "scaling-speedup-given")
    assert "against ddp on alpha" in chart.title and check_points(chart, report_data.pooled, "speedup_given") == 7
    assert get_series(chart, "ideal").y == pytest.approx([0.5, 1, 2])
    assert "slope, ddp on alpha" in get_block(scaling.section(report_data), Table, "scaling-slopes").columns
    report_data.pooled["speedup_given"] = pd.array([pd.NA] * 7, dtype="Float64")
    report_data.__dict__.pop("curves")
    assert not select_blocks(scaling.section(report_data), Chart, "scaling-speedup-given")


def test_a_baseline_of_two_devices_is_half_of_what_it_might_be(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path)
    (two,) = [path.parent for path in tmp_path.rglob("result.json") if '"ddp_gloo-2-0"' in path.read_text()]
    report_data = load_report_data([tmp_path], baseline=two)
    chart = get_block(scaling.section(report_data), Chart, "scaling-efficiency-given")
    assert check_points(chart, report_data.pooled, "efficiency_given") == 7
    assert str(report_data.baseline_name) in chart.title and get_series(chart, "ddp_gloo").y[1] == 1
    assert get_series(
        get_block(scaling.section(report_data), Chart, "scaling-speedup-given"), "ideal"
    ).y == pytest.approx([0.5, 1, 2])


def test_no_baseline_leaves_throughput_alone(tmp_path: Path) -> None:
    section = build_section(scaling, tmp_path, [sweeps.run("ddp_gloo", 4)])
    assert [name.split("-1-")[0] for name in list_ids(section)] == ["scaling-throughput"]
    assert [series.style for series in get_block(section, Chart).series] == ["points"]
    assert "Ideal" not in get_block(section, Chart).caption


def test_nothing_to_scale(tmp_path: Path) -> None:
    assert build_section(scaling, tmp_path / "one", [sweeps.run("bare_torch", 1)]) is None
    assert build_section(scaling, tmp_path / "failed", [sweeps.failed_run()]) is None


def test_text_stays_text(tmp_path: Path) -> None:
    runs = [sweeps.run(SCRIPT, n, hardware=HardwareSpec(SCRIPT)) for n in (1, 2)]
    section = build_section(scaling, tmp_path, runs)
    assert section is not None and all(SCRIPT in block_text(block) for block in section.blocks)
    assert get_block(section, Chart, "scaling-throughput").series[0].tags["hardware"] == SCRIPT
    assert not any("<" in name for name in list_ids(section))


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path)
    report_data.pooled.loc[report_data.pooled["run_id"] == "ddp_gloo-2-0", ["speedup_bare", "efficiency_bare"]] = pd.NA
    assert get_series(get_block(scaling.section(report_data), Chart, "scaling-speedup-bare"), "ddp_gloo").y[1] is None
