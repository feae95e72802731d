"""The sections training, epochs and learning."""

import pandas as pd
import pytest

from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.result import read_result, write_result
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
    list_ids,
    select_blocks,
    write_report_data,
)


def make_section(folder, *results):
    return build_section(training, folder, results)


def test_one_seed_is_its_own_curve_and_has_no_band(tmp_path):
    shown = make_section(tmp_path, trained(values=falling_metrics(400), target=None))
    chart = select_blocks(shown, Chart, "training-1-epochs")[0]
    (line,) = chart.series
    assert not line.low and len(line.x) <= 300 and (line.x[0], line.x[-1]) == (1, 400) and chart.y.log
    table = get_block(shown, Table)
    assert not {"target", "reached", "time to target (95 %)"} & set(table.columns)
    assert "seeds" not in chart.caption and not select_blocks(shown, Paragraph)


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


def test_without_validation_the_table_still_has_the_rest(tmp_path):
    bare = trained(target=None)
    for point in bare.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    bare.quality.metric = bare.quality.metric_name = None
    shown = make_section(tmp_path, bare)
    assert not select_blocks(shown, Chart) and get_block(shown, Table).rows[0].cells[6].text == "3"


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


@pytest.mark.parametrize("kind", ["failed", "no epoch"])
def test_no_epoch_is_known(kind, tmp_path):
    run = sweeps.failed_run() if kind == "failed" else sweeps.run("ddp_gloo", 1)
    run.workload.train_samples = None
    assert epochs_section(write_report_data(tmp_path, [run])) is None


def make_losses_section(folder):
    return training.losses_section(load_report_data([folder]))


def get_charts(section):
    return {block.id: block for block in section.blocks if isinstance(block, Chart)}


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
