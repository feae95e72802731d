"""What sections on scaling, predictions, machines, operations and problems leave out, and when; all else that
they show is in the golden reports."""

import dataclasses

import pandas as pd
import pytest

from scalebench.analysis import published as studies
from scalebench.analysis import step_breakdown
from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.prediction import predictions
from scalebench.core.machine.gpus import Gpu
from scalebench.core.probe_record import GpuTime, Profile, ProfiledOperation
from scalebench.report import machine_text
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.report_data import ReportData, load_report_data
from scalebench.report.sections import (
    make_sections,
    operations,
    prediction,
    problems,
    published,
    scaling,
    select_content,
    steps,
)
from tests.analysis.prediction.test_predictions import make_runs, make_two_models, predict
from tests.builders import sweeps
from tests.builders.runs import MACHINE, record
from tests.report.section_blocks import build_blocks, cell_texts, get_block, select_blocks, write_report_data


def test_self_is_shown_only_where_it_differs_much(tmp_path):
    runs = [sweeps.run("bare_torch", 1), *(sweeps.run("ddp_gloo", n) for n in (1, 2, 4))]
    report_data = write_report_data(tmp_path, runs)
    assert "slope, self" in get_block(scaling.scaling_groups(report_data), Table, "scaling-slopes").columns
    report_data.pooled["speedup_self"] = report_data.pooled["speedup_bare"] * 1.04
    report_data.__dict__.pop("curves")  # made of the rows as they were
    assert "slope, self" not in get_block(scaling.scaling_groups(report_data), Table, "scaling-slopes").columns


def test_a_named_baseline_with_which_nothing_can_be_compared_is_not_shown(tmp_path):
    sweeps.sweep(tmp_path)
    report_data = load_report_data([tmp_path], baseline="bare_torch-1-0")
    for name in ("speedup_given", "efficiency_given"):
        report_data.pooled[name] = pd.array([pd.NA] * 7, dtype="Float64")
    assert not select_blocks(scaling.scaling_groups(report_data), Chart, "scaling-efficiency-given")
    assert not any(" over " in head for head in get_block(scaling.list_configurations(report_data), Table).columns)


def test_nothing_at_all_has_no_sections(tmp_path):
    nothing = make_frame([], [*FRAME_COLUMNS, "repeats"])
    assert [*make_sections(ReportData([tmp_path], nothing, nothing))] == []


def test_an_unsteady_row_without_a_flag_is_a_warning(tmp_path):
    report_data = write_report_data(tmp_path, [sweeps.run("ddp_gloo", n) for n in (1, 2)])
    report_data.pooled["flags"], report_data.pooled["steady"] = ["busy_machine drifts", None], False
    texts = cell_texts(get_block(problems.list_problems(report_data), Table, "warnings"))
    assert [row[:2] for row in texts] == [["busy machine", "1"], ["drifts", "1"], ["not steady", "1"]]


def test_the_page_predicts_what_the_command_predicts(tmp_path):
    report_data = write_report_data(tmp_path, make_two_models())
    groups = predictions.predict_curves(report_data.curves, lambda row: report_data.result(row["run_id"]))
    tables = select_blocks(prediction.list_blocks(report_data), Table, "prediction-table")
    assert len(tables) == len(groups) == 2
    for table, group in zip(tables, groups, strict=True):
        forecast = group.predictions[0].predict_rates([row.cells[1].value for row in table.rows])
        assert [row.cells[2].value for row in table.rows] == forecast.throughput.tolist()


def test_strategies_that_scale_alike_share_a_sentence():
    runs = make_runs()
    for run in runs:
        run.spec["hardware"]["this_machine"] = False
    group = predict(runs)
    twice = dataclasses.replace(group, predictions=group.predictions * 2)
    texts = [each.text for each in prediction.make_paragraphs(twice, [8], 0.8, 1024)]
    assert [text.partition(" % ")[0] for text in texts if "efficiency" in text] == ["ddp_gloo and ddp_gloo keep 80"]
    assert any(text.startswith("All strategies: nothing between nodes was measured") for text in texts)


def test_no_verdict_follows_from_a_model_that_misses_what_was_measured(monkeypatch):
    monkeypatch.setattr(sweeps, "step_s", lambda strategy, gpus: {1: 0.01, 2: 0.05, 4: 0.011}[gpus])
    group = predict(make_runs(gpus=(1, 2, 4)))
    table = prediction.make_table(group, [1, 2, 4, 8])
    assert table.columns[3] == "measured"
    measured = [row.cells[3].value for row in table.rows]
    assert measured[:3] == pytest.approx([1000, 400, 40 / 0.011], rel=0.02) and measured[3] is None
    first, *others = (each.text for each in prediction.make_paragraphs(group, [8], 0.8, 1024))
    assert "misses what was measured, 40" in first and first.endswith(": no verdict follows.") and " on 2 (" in first
    assert not any("efficiency" in text or "To know more" in text for text in others)


def test_one_number_of_devices_gives_no_confidence_and_names_the_base(tmp_path):
    group = predict(make_runs(gpus=(2,)))
    first, *_ = (each.text for each in prediction.make_paragraphs(group, [4], 0.8, 1024))
    assert first.startswith("ddp_gloo keeps 80 % of the throughput per device on 2 up to ")
    assert "confidence" not in first
    assert "fewest measured devices (2)" in str(prediction.make_table(group, [4]).caption)
    one_device = [sweeps.run("bare_torch", 1), sweeps.run("ddp_gloo", 1)]
    assert build_blocks(prediction.list_blocks, tmp_path, one_device) == []


def test_what_an_idle_link_happened_to_be_and_a_package_that_is_not_there_are_no_differences():
    gpu = Gpu(0, "A100", None, 40 * 2**30, 1410, 1215, 400.0, 0, None, pcie_generation_max=4, pcie_width_max=16)
    slow, fast = (dataclasses.replace(gpu, pcie_generation=n, pcie_width=16, sm_clock_mhz=100 * n) for n in (1, 4))
    for one, other, differences in (
        ({"gpus": [slow]}, {"gpus": [fast]}, {}), ({"versions": {"torch": "2.9"}}, {}, {}),
        ({"gpus": [gpu]}, {}, {"none": ["b"]}),
    ):  # fmt: skip
        results = [record("ddp", 1, machine=dataclasses.replace(MACHINE, **each)) for each in (one, other)]
        differing = machine_text.find_differences(list(zip("ab", results, strict=True)))
        assert differing.get("GPU 0", {}).items() >= differences.items() and bool(differing) == bool(differences)
    facts = machine_text.list_hardware_facts(dataclasses.replace(MACHINE, gpus=[slow]))
    assert facts["GPU 0"].endswith("PCIe 4 x16")


def paragraph_text(blocks):
    return "\n".join(block.text for block in select_blocks(blocks, Paragraph))


@pytest.mark.gpu
def test_what_gpus_do_is_a_bar_and_a_sentence(tmp_path):
    run = sweeps.run("ddp_gloo", 2)
    assert not select_blocks(build_blocks(operations.list_blocks, tmp_path / "cpu", [run]), Chart, "gpu-time")
    for each in run.ranks:
        gpu = GpuTime(0.001, 0.002, 0.0005, 0.0, host_wait_s=0.01, kernel_wait_s=0.0, kernels=50)
        each.probes.profile = Profile(3, 0.02, 0.003, 0.002, [ProfiledOperation("gemm", 1.0, 0.001)], gpu)
    section = [*operations.list_blocks(write_report_data(tmp_path / "gpu", [run]))]
    (chart,) = select_blocks(section, Chart, "gpu-time")
    assert sum(series.y[0] for series in chart.series) == pytest.approx(1)
    assert "of a step the GPUs compute " in paragraph_text(section) and "25.0 % of comm" in paragraph_text(section)


def test_traces_are_linked_from_where_the_report_is(tmp_path):
    one, other = sweeps.run("ddp_gloo", 2, trace="trace.json.gz"), sweeps.run("horovod_gloo", 2)
    other.trace, other.ranks[1].probes.trace = "../0/trace.json.gz", "trace1.json.gz"
    for folder, run in (("a", one), ("b", other)):
        sweeps.write_results(tmp_path / folder, [run])
    for path in ("a/0/trace.json.gz", "b/0/trace.json.gz", "b/0/trace1.json.gz"):
        (tmp_path / path).touch()

    def find_table():
        section = operations.list_blocks(load_report_data([tmp_path / "a", tmp_path / "b"]))
        return get_block(section, Table, "traces")

    assert cell_texts(find_table()) == [
        ["ddp_gloo on 2 devices", "all ranks", "0/trace.json.gz"],
        ["horovod_gloo on 2 devices", "rank 1", "../b/0/trace1.json.gz"],
    ]
    assert find_table().rows[0].cells[2].link == "0/trace.json.gz" and "ui.perfetto.dev" in find_table().caption
    (tmp_path / "a" / "0" / "trace.json.gz").unlink()
    assert len(find_table().rows) == 1


@pytest.mark.parametrize("study", studies.list_studies())
def test_all_rows_of_a_study_are_shown_with_their_source(tmp_path, study):
    """Beside other models and strategies, with which nothing is compared."""
    sweeps.sweep(tmp_path)
    section = select_content(published.list_blocks(load_report_data([tmp_path], references=[study])))
    source = studies.load_study(study).source
    (table,) = select_blocks(section, Table)
    assert len(table.rows) == len(studies.load_published([study])) and all(row.cells[-1].text for row in table.rows)
    assert source in table.caption and source.rstrip(".") in paragraph_text(section)
    assert select_blocks(section, Chart) == []


def test_every_part_of_the_frame_has_a_row():
    assert {*steps.REASONS} == {*step_breakdown.SERIES_COLUMNS} and {*steps.STEP_PARTS} < {*steps.REASONS}


def test_without_probes_a_sentence_says_so(tmp_path):
    result = sweeps.run("ddp_gloo", 2)
    for member in result.ranks:
        member.probes = None
    assert "measure.probes" in build_blocks(operations.list_blocks, tmp_path, [result])[0].text
