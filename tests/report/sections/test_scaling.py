"""Scaling curves of a report: the frame's figures, ideal lines, and what is never in one chart."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scalebench.core.spec import HardwareSpec
from scalebench.report.document import Chart, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections.scaling import section
from tests.builders import sweeps
from tests.report.section_blocks import SCRIPT, column, evidence, frames_own, ids, named, of_kind, one, texts


def test_curves_are_the_frames_figures(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    made = section(found)
    throughput = one(made, Chart, "scaling-throughput")
    assert frames_own(throughput, found.pooled, "throughput_samples_per_s", "throughput") == 7
    assert len(named(throughput, "ddp_gloo").low) == len(named(throughput, "ddp_gloo").high) == 3
    for name in ("speedup", "efficiency"):
        for kind in ("bare", "self"):  # the overhead at one device is five per cent
            chart = one(made, Chart, f"scaling-{name}-{kind}")
            assert frames_own(chart, found.pooled, f"{name}_{kind}") == 7
            assert "more is better" in chart.caption and "over blocks of one repeat" in chart.caption
    assert len(set(ids(made))) == len(ids(made)) == 6


def test_ideal_lines(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    made = section(found)
    bare = float(found.pooled.set_index("run_id").at["bare_torch-1-0", "throughput_samples_per_s"])
    ideal = named(one(made, Chart, "scaling-throughput"), "ideal of bare_torch")
    assert (list(ideal.x), list(ideal.y)) == ([1, 2, 4], [bare, 2 * bare, 4 * bare])
    assert named(one(made, Chart, "scaling-speedup-bare"), "ideal").y == [1, 2, 4]
    assert named(one(made, Chart, "scaling-efficiency-bare"), "ideal").y == [1, 1, 1]
    assert ideal.style == "ideal" and set(ideal.tags) == {"model", "hardware"}


def test_self_is_drawn_only_where_it_differs_much(tmp_path: Path) -> None:
    runs = [sweeps.run("bare_torch", 1), *(sweeps.run("ddp_gloo", n) for n in (1, 2))]
    found = evidence(tmp_path, runs)
    assert of_kind(section(found), Chart, "scaling-speedup-self")
    found.pooled["speedup_self"] = found.pooled["speedup_bare"] * 1.04
    found.__dict__.pop("curves")  # made of the rows as they were
    assert not of_kind(section(found), Chart, "scaling-speedup-self")
    assert "slope, self" not in one(section(found), Table, "scaling-slopes").columns


def test_over_launches_the_caption_says_so(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path / "x", repeats=3)
    found = load_report_data([tmp_path])
    chart = one(section(found), Chart, "scaling-speedup-bare")
    assert "Intervals: 95 %, over 3 repeats." in chart.caption
    assert frames_own(chart, found.pooled, "speedup_bare") == 7


def test_weak_and_strong_hardware_and_models_are_charts_of_their_own(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"strong-{n}", **sweeps.strong(40, n)) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"other-{n}", hardware=HardwareSpec("other")) for n in (1, 2)]
    found = evidence(tmp_path, runs)
    charts = of_kind(section(found), Chart, "scaling-throughput")
    assert [len(chart.series) for chart in charts] == [1, 1, 1]
    assert len(set(ids(section(found)))) == len(ids(section(found)))
    assert ["strong" in chart.title for chart in charts] == [False, True, False]
    assert ["other" in chart.title for chart in charts] == [False, False, True]
    of_run = found.pooled.set_index("run_id")["throughput_samples_per_s"]
    shown = [list(chart.series[0].y) for chart in charts]
    assert shown[0] == [of_run["ddp_gloo-1-0"], of_run["ddp_gloo-2-0"]]
    assert shown[1] == [of_run["strong-1"], of_run["strong-2"]]


def test_the_table_of_slopes(tmp_path: Path) -> None:
    found = evidence(tmp_path, min_efficiency=0.75)
    table = one(section(found), Table, "scaling-slopes")
    rows = found.pooled[found.pooled["strategy"] == "ddp_gloo"]
    x, y = rows["gpus"].astype(float), rows["speedup_bare"].astype(float)
    fitted = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    assert column(table, "slope, bare")["ddp_gloo"] == pytest.approx(fitted)
    cells = {row.cells[0].text: [cell.text for cell in row.cells] for row in table.rows}
    assert cells["ddp_gloo"][1].startswith(f"{fitted:.2f} [") and cells["ddp_gloo"][2] == "1, 2, 4"
    assert cells["ddp_gloo"][3] == "4 [4]" and cells["horovod_gloo"][3] == "2 [2]"
    assert cells["bare_torch"][1:3] == ["", ""]
    assert "keeps 75 %, bare" in table.columns


def test_jumps_where_another_node_begins(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2, 4)]
    assert not of_kind(section(evidence(tmp_path / "one", runs)), Table, "scaling-nodes")
    runs[2].scale.nodes = 2
    found = evidence(tmp_path / "two", [*runs, sweeps.run("bare_torch", 1)])
    table = one(section(found), Table, "scaling-nodes")
    assert [cell.text for cell in table.rows[0].cells[:3]] == ["ddp_gloo", "2 to 4", "1 to 2"]
    shares = found.pooled.set_index("run_id")["efficiency_bare"]
    assert table.rows[0].cells[3].value == shares["ddp_gloo-2-0"]
    assert table.rows[0].cells[4].value == shares["ddp_gloo-4-0"]
    assert table.rows[0].cells[5].value == pytest.approx(0.9, rel=0.01)


def with_given(found: pd.DataFrame) -> None:
    """Columns against a baseline of two devices that is as fast as the bare one for each."""
    for end in ("", "_low", "_high"):
        found[f"speedup_given{end}"] = found[f"speedup_bare{end}"] / 2
        found[f"efficiency_given{end}"] = found[f"efficiency_bare{end}"]
    found["baseline_given_id"] = "there"


def test_the_given_baseline_is_named_and_its_ideal_is_its_own(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    with_given(found.pooled)
    assert not of_kind(section(found), Chart, "scaling-speedup-given")  # nobody named it
    found.baseline_name = "ddp on alpha"
    chart = one(section(found), Chart, "scaling-speedup-given")
    assert "against ddp on alpha" in chart.title and frames_own(chart, found.pooled, "speedup_given") == 7
    assert named(chart, "ideal").y == pytest.approx([0.5, 1, 2])
    assert "slope, ddp on alpha" in one(section(found), Table, "scaling-slopes").columns
    found.pooled["speedup_given"] = pd.array([pd.NA] * 7, dtype="Float64")
    found.__dict__.pop("curves")
    assert not of_kind(section(found), Chart, "scaling-speedup-given")


def test_a_baseline_of_two_devices_is_half_of_what_it_might_be(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path)
    (two,) = [path.parent for path in tmp_path.rglob("result.json") if '"ddp_gloo-2-0"' in path.read_text()]
    found = load_report_data([tmp_path], baseline=two)
    chart = one(section(found), Chart, "scaling-efficiency-given")
    assert frames_own(chart, found.pooled, "efficiency_given") == 7
    assert str(found.baseline_name) in chart.title and named(chart, "ddp_gloo").y[1] == 1
    assert named(one(section(found), Chart, "scaling-speedup-given"), "ideal").y == pytest.approx([0.5, 1, 2])


def test_no_baseline_leaves_throughput_alone(tmp_path: Path) -> None:
    made = section(evidence(tmp_path, [sweeps.run("ddp_gloo", 4)]))
    assert [name.split("-1-")[0] for name in ids(made)] == ["scaling-throughput"]
    assert [series.style for series in one(made, Chart).series] == ["points"]
    assert "Ideal" not in one(made, Chart).caption


def test_nothing_to_scale(tmp_path: Path) -> None:
    assert section(evidence(tmp_path / "one", [sweeps.run("bare_torch", 1)])) is None
    assert section(evidence(tmp_path / "failed", [sweeps.failed()])) is None


def test_text_stays_text(tmp_path: Path) -> None:
    runs = [sweeps.run(SCRIPT, n, hardware=HardwareSpec(SCRIPT)) for n in (1, 2)]
    made = section(evidence(tmp_path, runs))
    assert made is not None and all(SCRIPT in texts(block) for block in made.blocks)
    assert one(made, Chart, "scaling-throughput").series[0].tags["hardware"] == SCRIPT
    assert not any("<" in name for name in ids(made))


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    found.pooled.loc[found.pooled["run_id"] == "ddp_gloo-2-0", ["speedup_bare", "efficiency_bare"]] = pd.NA
    assert named(one(section(found), Chart, "scaling-speedup-bare"), "ddp_gloo").y[1] is None
