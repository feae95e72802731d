"""What an epoch takes, in a report; the one chart that several machines may share."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scalebench.report.document import Chart, Table
from scalebench.report.sections import training
from scalebench.report.sections.training import epochs_section
from scalebench.spec import HardwareSpec
from tests import sweeps
from tests.report.section_blocks import SCRIPT, column, evidence, frames_own, ids, named, of_kind, one, texts

COSTS = [name for name, *_ in training.COSTS]


def test_epochs_are_the_frames_figures_with_throughputs_limits_turned_round(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    chart = one(epochs_section(found), Chart, "epochs-epoch-s")
    rows = found.pooled.assign(
        epoch_s_low=found.pooled["epoch_s"]
        * found.pooled["throughput_samples_per_s"]
        / found.pooled["throughput_high"],
        epoch_s_high=found.pooled["epoch_s"]
        * found.pooled["throughput_samples_per_s"]
        / found.pooled["throughput_low"],
    )
    assert frames_own(chart, rows, "epoch_s") == 7
    for series in chart.series:
        for low, y, high in zip(series.low, series.y, series.high, strict=True):
            assert low is not None and y is not None and high is not None and low < y < high
    assert "less is better" in chart.caption and "over blocks of one repeat" in chart.caption
    hours = one(epochs_section(found), Chart, "epochs-device-hours-per-epoch")
    assert frames_own(hours, rows, "device_hours_per_epoch") == 7
    table = one(epochs_section(found), Table)
    keys = [f"{row['strategy']} {row['gpus']}" for row in rows.to_dict("records")]
    assert column(table, "epoch (95 %)") == dict(zip(keys, map(float, rows["epoch_s"]), strict=True))
    assert set(column(table, "steps per epoch").values()) == {100}


def test_costs_are_told_where_they_are_known(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    bare = found.pooled.drop(columns=COSTS, errors="ignore")
    for name in COSTS:
        bare[name] = pd.array([pd.NA] * len(bare), dtype="Float64")
    found.pooled = bare.drop(columns=COSTS[0])  # an older frame
    assert one(epochs_section(found), Table).columns[-1] == "steps per epoch"
    rows = range(len(bare))
    for number, name in enumerate(COSTS, 1):
        bare[name] = pd.array([pd.NA if row == 0 else 1000.5 * number + row for row in rows], dtype="Float64")
    found.pooled = bare
    found.__dict__.pop("curves")
    made = epochs_section(found)
    for name, head, title, _ in training.COSTS:
        values = list(column(one(made, Table), head).values())
        assert values[0] is None and values[1:] == [float(value) for value in bare[name][1:]]
        charts = of_kind(made, Chart, f"epochs-{name.replace('_', '-')}")
        assert [frames_own(chart, bare, name) for chart in charts] == ([6] if title else [])
    shown = one(made, Table).rows[1].cells
    assert [cell.text for cell in shown[4:]] == ["1,002", "2,002 J", "3,002 s", "4,003", "5,004 J"]
    assert len(set(ids(made))) == len(ids(made))


def test_machines_share_the_chart_and_are_told_apart(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"other-{n}", hardware=HardwareSpec(SCRIPT)) for n in (1, 2)]
    found = evidence(tmp_path, runs)
    chart = one(epochs_section(found), Chart, "epochs-epoch-s")
    assert [series.name for series in chart.series] == ["ddp_gloo on cpu", f"ddp_gloo on {SCRIPT}"]
    assert [series.tags["hardware"] for series in chart.series] == ["cpu", SCRIPT]
    of_run = found.pooled.set_index("run_id")["epoch_s"]
    assert named(chart, "ddp_gloo on cpu").y == [of_run["ddp_gloo-1-0"], of_run["ddp_gloo-2-0"]]
    assert named(chart, f"ddp_gloo on {SCRIPT}").y == [of_run["other-1"], of_run["other-2"]]
    assert f"hardware cpu, {SCRIPT}, weak" in chart.title and "each curve names its own" in chart.caption
    assert SCRIPT in texts(one(epochs_section(found), Table))


def test_weak_and_strong_never_share_one(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", 2), sweeps.run("ddp_gloo", 2, run_id="s", **sweeps.strong(40, 2))]
    charts = of_kind(epochs_section(evidence(tmp_path, runs)), Chart, "epochs-epoch-s")
    assert [[series.name for series in chart.series] for chart in charts] == [["ddp_gloo"], ["ddp_gloo"]]
    assert "names its own" not in charts[0].caption


@pytest.mark.parametrize("kind", ["failed", "no epoch"])
def test_no_epoch_is_known(kind: str, tmp_path: Path) -> None:
    run = sweeps.failed() if kind == "failed" else sweeps.run("ddp_gloo", 1)
    run.workload.train_samples = None
    assert epochs_section(evidence(tmp_path, [run])) is None


def test_two_blocks_give_an_epoch_without_limits(tmp_path: Path) -> None:
    made = epochs_section(evidence(tmp_path, [sweeps.run("ddp_gloo", 1, blocks=2)]))
    (series,) = one(made, Chart, "epochs-epoch-s").series
    assert series.low == () and one(made, Table).rows[0].cells[2].text == f"{series.y[0]:.2f} s"
