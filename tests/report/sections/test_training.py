"""The sections training, epochs and learning."""

import pandas as pd
import pytest

from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.result import read_result, write_result
from scalebench.core.spec import HardwareSpec
from scalebench.report import markdown, training_tables
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.html import page
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import make_sections, training
from scalebench.report.sections.training import epochs_section
from tests.builders import sweeps
from tests.builders.sweeps import falling_metrics, run, sweep, write_results
from tests.builders.sweeps import training_run as trained
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


def make_section(folder, *results):
    return build_section(training, folder, results)


def make_seeds(strategy, gpus, lasts, epoch_s, **changes):
    for seed, last in enumerate(lasts):
        yield trained(
            strategy, gpus, seed, [0.4, 0.2 + 0.01 * seed, last], epoch_s=epoch_s * (1 + 0.05 * seed), **changes
        )


def test_charts_are_means_over_seeds_of_the_records_points(tmp_path):
    results = [*make_seeds("bare_torch", 1, [0.1, 0.11, 0.14], 4.0), *make_seeds("ddp_gloo", 2, [0.12, 0.1, 0.3], 2.5)]
    chart = get_block(make_section(tmp_path, *results), Chart, "training-1-epochs")
    line = get_series(chart, "ddp_gloo on 2 devices")
    assert line.x == [1, 2, 3] and line.y == pytest.approx([0.4, 0.21, 0.52 / 3])
    assert line.low[0] == pytest.approx(0.4) == line.high[0] and line.tags["strategy"] == "ddp_gloo"
    reach = 4.302652729749462 * 0.01 / 3**0.5
    assert (line.low[1], line.high[1]) == pytest.approx((0.21 - reach, 0.21 + reach))
    target = get_series(chart, "target mse 0.15")
    assert (target.x, target.y, target.style) == ([1.0, 3.0], [0.15, 0.15], "ideal")


def test_one_seed_is_its_own_curve_and_has_no_band(tmp_path):
    shown = make_section(tmp_path, trained(values=falling_metrics(400), target=None))
    chart = select_blocks(shown, Chart, "training-1-epochs")[0]
    (line,) = chart.series
    assert not line.low and len(line.x) <= 300 and (line.x[0], line.x[-1]) == (1, 400) and chart.y.log
    table = get_block(shown, Table)
    assert not {"target", "reached", "time to target (95 %)"} & set(table.columns)
    assert "seeds" not in chart.caption and not select_blocks(shown, Paragraph)


def test_lines_end_where_the_first_seed_does(tmp_path):
    shown = make_section(tmp_path, trained(seed=0, values=[0.4, 0.3, 0.2, 0.1]), trained(seed=1, values=[0.3, 0.1]))
    line = select_blocks(shown, Chart, "training-1-epochs")[0].series[0]
    assert line.x == [1, 2] and line.y == pytest.approx([0.35, 0.2]) and not line.low


def test_seeds_that_were_evaluated_by_the_clock_have_no_mean(tmp_path):
    results = [trained(seed=seed, values=[0.5, 0.4, 0.3, 0.2], target=None) for seed in range(3)]
    for seed, result in enumerate(results):
        for point in result.quality.curve[:-1]:
            point.step += seed
    line = select_blocks(make_section(tmp_path, *results), Chart, "training-1-epochs")[0].series[0]
    assert line.y == [0.5, 0.4, 0.3, 0.2] and not line.low


def test_rules_and_rates_are_names(tmp_path):
    results = [
        trained(settings={"learning_rate_rule": rule, "base_batch": 10, "learning_rate": 1e-3})
        for rule in ("none", "sqrt")
    ]
    results.append(trained(settings={"schedule": "cosine", "base_batch": 10}, run_id="c"))
    names = training_tables.name_trainings(summarize_trainings(write_report_data(tmp_path, results).frame))
    assert sorted(names.values()) == [
        "ddp_gloo on 2 devices, learning rate rule none",
        "ddp_gloo on 2 devices, learning rate rule sqrt",
        "ddp_gloo on 2 devices, schedule=cosine, learning rate rule none",
    ]


def test_an_accuracy_rises(tmp_path):
    shown = make_section(
        tmp_path, *(trained(seed=s, values=[0.02, 0.6, 0.9], target=0.8, metric="accuracy") for s in range(3))
    )
    chart = select_blocks(shown, Chart, "training-1-epochs")[0]
    assert "higher is better" in chart.caption and not chart.y.log
    gap = select_blocks(shown, Chart, "training-1-gap")[0].series[0]
    assert gap.y == pytest.approx([-0.01, -0.3, -0.45])  # better than on what it was trained on
    assert (
        get_block(shown, Table).rows[0].cells[get_block(shown, Table).columns.index("reached")].text == "3 of 3 seeds"
    )


def test_without_validation_the_table_still_has_the_rest(tmp_path):
    bare = trained(target=None)
    for point in bare.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    bare.quality.metric = bare.quality.metric_name = None
    shown = make_section(tmp_path, bare)
    assert not select_blocks(shown, Chart) and get_block(shown, Table).rows[0].cells[6].text == "3"


def test_machines_and_models_are_groups_of_their_own(tmp_path):
    other = HardwareSpec("elsewhere", devices="cpu", gpus_per_node=2)
    shown = make_section(tmp_path, trained(), trained(hardware=other, run_id="there"))
    assert [table.id for table in select_blocks(shown, Table)] == ["training-1-ends", "training-2-ends"]
    assert "hardware elsewhere" in select_blocks(shown, Table)[1].title


def test_of_many_some_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "MAX_CURVES", 1)
    shown = make_section(tmp_path, trained(), trained("mirrored"))
    assert len(select_blocks(shown, Chart)[0].series) == 2  # and the target
    assert any(block.text.startswith("1 of 2 trainings are") for block in select_blocks(shown, Paragraph))
    assert len(get_block(shown, Table).rows) == 2


def test_it_comes_after_the_epochs_and_is_escaped(tmp_path):
    report_data = write_report_data(tmp_path, [trained(settings={"learning_rate_rule": SCRIPT}), trained()])
    (section,) = [section for section in make_sections(report_data) if section.id == "training"]
    headings = [block.text for block in select_blocks(section, Paragraph) if block.kind == "heading"]
    assert [text.split()[0] for text in headings] == ["Epochs:", "Training:", "Loss"]
    text = " ".join(block_text(block) for block in training.section(report_data).blocks)
    assert SCRIPT in text
    for write_report, name in ((markdown.write, "r.md"), (page.write, "r.html")):
        write_report(report_data, tmp_path / name)
        assert SCRIPT not in (tmp_path / name).read_text(encoding="utf-8")


COSTS = [name for name, *_ in training.COSTS]


def test_epochs_are_the_frames_figures_with_throughputs_limits_turned_round(tmp_path):
    report_data = write_report_data(tmp_path)
    chart = get_block(epochs_section(report_data), Chart, "epochs-epoch-s")
    rows = report_data.pooled.assign(
        epoch_s_low=report_data.pooled["epoch_s"]
        * report_data.pooled["throughput_samples_per_s"]
        / report_data.pooled["throughput_high"],
        epoch_s_high=report_data.pooled["epoch_s"]
        * report_data.pooled["throughput_samples_per_s"]
        / report_data.pooled["throughput_low"],
    )
    assert check_points(chart, rows, "epoch_s") == 7
    for series in chart.series:
        for low, y, high in zip(series.low, series.y, series.high, strict=True):
            assert low is not None and y is not None and high is not None and low < y < high
    assert "less is better" in chart.caption and "over blocks of one repeat" in chart.caption
    hours = get_block(epochs_section(report_data), Chart, "epochs-device-hours-per-epoch")
    assert check_points(hours, rows, "device_hours_per_epoch") == 7
    table = get_block(epochs_section(report_data), Table)
    keys = [f"{row['strategy']} {row['gpus']}" for row in rows.to_dict("records")]
    assert get_column(table, "epoch (95 %)") == dict(zip(keys, map(float, rows["epoch_s"]), strict=True))
    assert set(get_column(table, "steps per epoch").values()) == {100}


def test_costs_are_shown_where_they_are_measured(tmp_path):
    report_data = write_report_data(tmp_path)
    bare = report_data.pooled.drop(columns=COSTS, errors="ignore")
    for name in COSTS:
        bare[name] = pd.array([pd.NA] * len(bare), dtype="Float64")
    report_data.pooled = bare.drop(columns=COSTS[0])  # an older frame
    assert get_block(epochs_section(report_data), Table).columns[-1] == "steps per epoch"
    rows = range(len(bare))
    for number, name in enumerate(COSTS, 1):
        bare[name] = pd.array([pd.NA if row == 0 else 1000.5 * number + row for row in rows], dtype="Float64")
    report_data.pooled = bare
    report_data.__dict__.pop("curves")
    epochs = epochs_section(report_data)
    for name, head, title, _ in training.COSTS:
        values = list(get_column(get_block(epochs, Table), head).values())
        assert values[0] is None and values[1:] == [float(value) for value in bare[name][1:]]
        charts = select_blocks(epochs, Chart, f"epochs-{name.replace('_', '-')}")
        assert [check_points(chart, bare, name) for chart in charts] == ([6] if title else [])
    shown = get_block(epochs, Table).rows[1].cells
    assert [cell.text for cell in shown[4:]] == ["1,002 h", "2,002 J", "3,002 s", "4,003 h", "5,004 J"]
    assert len(set(list_ids(epochs))) == len(list_ids(epochs))


def test_machines_share_the_chart_under_different_names(tmp_path):
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"other-{n}", hardware=HardwareSpec(SCRIPT)) for n in (1, 2)]
    report_data = write_report_data(tmp_path, runs)
    chart = get_block(epochs_section(report_data), Chart, "epochs-epoch-s")
    assert [series.name for series in chart.series] == ["ddp_gloo on cpu", f"ddp_gloo on {SCRIPT}"]
    assert [series.tags["hardware"] for series in chart.series] == ["cpu", SCRIPT]
    of_run = report_data.pooled.set_index("run_id")["epoch_s"]
    assert get_series(chart, "ddp_gloo on cpu").y == [of_run["ddp_gloo-1-0"], of_run["ddp_gloo-2-0"]]
    assert get_series(chart, f"ddp_gloo on {SCRIPT}").y == [of_run["other-1"], of_run["other-2"]]
    assert "each curve names its own" in chart.caption
    assert SCRIPT in block_text(get_block(epochs_section(report_data), Table))


@pytest.mark.parametrize("kind", ["failed", "no epoch"])
def test_no_epoch_is_known(kind, tmp_path):
    run = sweeps.failed_run() if kind == "failed" else sweeps.run("ddp_gloo", 1)
    run.workload.train_samples = None
    assert epochs_section(write_report_data(tmp_path, [run])) is None


def make_losses_section(folder):
    return training.losses_section(load_report_data([folder]))


def get_charts(section):
    return {block.id: block for block in section.blocks if isinstance(block, Chart)}


def test_the_lines_end_where_the_record_does(tmp_path):
    sweep(tmp_path, ["bare_torch", "ddp_gloo"], gpus=(1, 2))
    report_data, section = load_report_data([tmp_path]), make_losses_section(tmp_path)
    charts_by_id = get_charts(section)
    assert list(charts_by_id) == ["learning-0-epochs"]
    names = [series.name for series in charts_by_id["learning-0-epochs"].series]
    assert names == ["bare_torch on 1 device", "ddp_gloo on 1 device", "ddp_gloo on 2 devices"]
    row = report_data.frame[report_data.frame["run_id"] == "ddp_gloo-2-0"].iloc[0]
    epochs = charts_by_id["learning-0-epochs"].series[2]
    result = report_data.result("ddp_gloo-2-0")
    assert epochs.y[-1] == row["final_loss"] and epochs.x[-1] == (16 * 20 + 64 * 20) / 1000
    assert row["warmup_steps"] + row["measured_steps"] == 16 + 64
    assert epochs.tags == {"model": "materials_cnn", "strategy": "ddp_gloo", "hardware": "cpu"}
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert [cell.value for cell in table.rows[2].cells][1:] == [
        80,
        1.6,
        pytest.approx(4 * 0.1 + 12 * 0.01 + sum(result.ranks[0].block_s)),
        row["final_loss"],
        row["metric"],
    ]
    assert table.rows[2].cells[5].text == "mse 0.01"


def test_without_the_size_of_the_data_set_samples_are_shown(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    result = read_result(tmp_path / "0" / "result.json")
    result.workload.train_samples = None
    write_result(result, tmp_path / "0")
    charts_by_id = get_charts(make_losses_section(tmp_path))
    assert "learning-0-epochs" not in charts_by_id and charts_by_id["learning-0-samples"].series[0].x[-1] == 80 * 10


def test_long_series_keep_their_spikes(tmp_path):
    result = run("ddp_gloo", 1, blocks=2000)
    result.ranks[0].block_losses[1234] = 55.0
    write_results(tmp_path, [result])
    for chart in get_charts(make_losses_section(tmp_path)).values():
        assert len(chart.series[0].x) <= training.MAX_CURVE_POINTS and 55.0 in chart.series[0].y


def test_no_more_lines_than_are_distinguishable(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "MAX_CURVES", 2)
    sweep(tmp_path, ["ddp_gloo", "horovod_gloo", "lightning_ddp_gloo"], gpus=(1,), repeats=2)
    section = make_losses_section(tmp_path)
    names = [series.name for series in get_charts(section)["learning-0-epochs"].series]
    assert names == ["ddp_gloo on 1 device", "horovod_gloo on 1 device"], "of several repeats the first"
    sentences = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert sentences == ["2 of 3 configurations are drawn."]


def test_the_caption_describes_how_long_runs_and_trainings_are(tmp_path):
    write_results(tmp_path / "measured", [run("ddp_gloo", 1)])
    write_results(tmp_path / "trained", [trained()])
    captions = [get_block(make_losses_section(tmp_path / name), Table).caption for name in ("measured", "trained", ".")]
    assert ["train.stop" in caption for caption in captions] == [False, True, True]
    assert ["as training would be" in caption for caption in captions] == [True, False, True]
    assert "The others are as long as their figures" in captions[2]
