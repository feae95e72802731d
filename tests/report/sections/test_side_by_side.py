"""Bars by strategy and by model, and the table of chosen devices: the frame's figures, like beside like."""

import dataclasses

import pytest

from scalebench.report.document import Chart, Table, has_shape
from scalebench.report.flag_text import to_number
from scalebench.report.sections import side_by_side
from tests.builders import sweeps
from tests.builders.runs import MACHINE, simulated_config
from tests.report.section_blocks import build_section, get_block, select_blocks, write_report_data

TOPOLOGY = [["X", "PIX", "PHB"], ["PIX", "X", "PHB"], ["PHB", "PHB", "X"]]


def test_bars_by_strategy_are_the_frames_speedups(tmp_path):
    report_data = write_report_data(tmp_path)
    chart = get_block(side_by_side.section(report_data), Chart)
    assert (chart.title, chart.kind) == ("Speedup by strategy", "bars") and has_shape(chart)
    assert [series.name for series in chart.series] == ["2 devices", "4 devices"], "not one, which says no speedup"
    figures = report_data.pooled.set_index(["strategy", "gpus"])
    for series, count in zip(chart.series, (2, 4), strict=True):
        assert series.x == ["ddp_gloo", "horovod_gloo"] == [tags["strategy"] for tags in series.point_tags]
        rows = [figures.loc[name, count] for name in series.x]
        assert series.y == [row["speedup_bare"] for row in rows]
        assert series.low == [to_number(row["speedup_bare_low"]) for row in rows]


def test_dots_are_the_repeats_and_without_a_baseline_bars_are_throughputs(tmp_path):
    runs = [sweeps.run(name, 2, repeat) for repeat in range(3) for name in ("ddp_gloo", "horovod_gloo")]
    report_data = write_report_data(tmp_path, runs)
    chart = get_block(side_by_side.section(report_data), Chart)
    assert chart.title == "Throughput by strategy on 2 devices"
    (bars,) = chart.series
    frame = report_data.frame
    for name, dots in zip(bars.x, bars.repeats, strict=True):
        assert dots == list(frame.loc[frame["strategy"] == name, "throughput_samples_per_s"])


def test_one_configuration_has_nothing_beside_it(tmp_path):
    assert build_section(side_by_side, tmp_path, [sweeps.run("ddp_gloo", gpus) for gpus in (1, 2)]) is None


def of_model(model, strategy, gpus):
    spec = dataclasses.replace(simulated_config().model, name=model)
    return sweeps.run(strategy, gpus, model=spec, run_id=f"{model}-{strategy}-{gpus}")


@pytest.mark.parametrize(
    ("gpus", "title"), [(2, "Efficiency by model on 2 devices"), (1, "Throughput by model on 1 device")]
)
def test_bars_by_model(gpus, title, tmp_path):
    runs = [of_model(model, name, count) for model in ("resnet50", "vgg16")
            for name, count in (("bare_torch", 1), ("ddp_gloo", gpus), ("horovod_gloo", gpus))]  # fmt: skip
    runs.append(of_model("alexnet", "ddp_gloo", gpus))
    runs.append(of_model("alexnet", "bare_torch", 1))
    chart = select_blocks(build_section(side_by_side, tmp_path, runs), Chart, "side-by-side-model")[0]
    bars = {series.name: series for series in chart.series}
    assert chart.title == title and bars["ddp_gloo"].x == ["resnet50", "vgg16", "alexnet"]
    assert bars["horovod_gloo"].x == ["resnet50", "vgg16"] and ("bare_torch" in bars) == (gpus == 1)


def on_devices(strategy, device_ids, repeat, **machine):
    hardware = dataclasses.replace(simulated_config().hardware, device_ids=device_ids)
    machine = dataclasses.replace(MACHINE, topology=TOPOLOGY, **machine)
    run_id = f"{strategy}-{device_ids}-{repeat}"
    return sweeps.run(strategy, 2, repeat, hardware=hardware, machine=machine, run_id=run_id)


def test_pairs_of_devices_are_one_table_with_their_links_and_ratios(tmp_path):
    names = ("ddp_gloo", "horovod_gloo")
    runs = [on_devices(name, ids, repeat) for repeat in range(3) for name in names for ids in ([0, 1], [0, 2])]
    runs = [run for run in runs if run.run_id[:-2] != "horovod_gloo-[0, 2]"] + [on_devices("zero1", [0, 2], 0)]
    report_data = write_report_data(tmp_path / "known", runs)
    assert not select_blocks(side_by_side.section(report_data), Table)[0].rows[1:], (
        "without a partner there is no ratio"
    )
    runs += [on_devices("horovod_gloo", [0, 2], repeat) for repeat in range(3)]
    report_data = write_report_data(tmp_path / "all", runs)
    table = get_block(side_by_side.section(report_data), Table)
    heads = ["0,1 (PIX), samples/s", "0,2 (PHB), samples/s", "0,2 (PHB) / 0,1 (PIX)"]
    assert table.columns == ["strategy", "devices", *heads]
    rates = report_data.pooled.set_index(["strategy", "device_ids"])["throughput_samples_per_s"]
    for row, name in zip(table.rows, names, strict=True):
        assert row.cells[0].text == name and row.tags["strategy"] == name
        assert [cell.value for cell in row.cells[2:4]] == [rates[name, "0 1"], rates[name, "0 2"]]
        assert row.cells[4].value == pytest.approx(rates[name, "0 2"] / rates[name, "0 1"]) and "[" in row.cells[4].text
