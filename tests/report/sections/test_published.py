"""Figures of published studies beside measured ones: only like with like, each with its source."""

import dataclasses

import pytest

from scalebench.analysis import published
from scalebench.report.document import Chart, Paragraph, Table, has_shape
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import published as published_section
from tests.builders import sweeps
from tests.builders.runs import simulated_config


def model_spec(model):
    return dataclasses.replace(simulated_config().model, name=model)


def write_runs(folder, model, strategies, **changes):
    """One, two and four devices of each, and the bare baseline."""
    results = [sweeps.run("bare_torch", 1, model=model_spec(model), **changes)]
    results += [sweeps.run(name, gpus, model=model_spec(model), **changes) for name in strategies for gpus in (1, 2, 4)]
    sweeps.write_results(folder, results)


def strong_run(strategy, gpus):
    """32 samples over all devices, as the study had."""
    train = dataclasses.replace(simulated_config().train, global_batch=32)
    result = sweeps.run(strategy, gpus, model=model_spec("resnet50"), scaling="strong", train=train)
    scale = dataclasses.replace(result.scale, batch_per_device=32 // gpus, global_batch=32)
    return dataclasses.replace(result, scale=scale)


def make_section(folder, *studies):
    report_data = dataclasses.replace(load_report_data([folder]), published=published.load_published(studies))
    return published_section.section(report_data)


def cells_by_table(section):
    """Cells of each by column."""
    return {
        block.id: [
            dict(zip(block.columns, [cell.text for cell in row.cells], strict=True)) for row in block.rows
        ]
        for block in section.blocks
        if isinstance(block, Table)
    }  # fmt: skip


def charts(section):
    return [block for block in section.blocks if isinstance(block, Chart)]


def test_strong_scaling_beside_strong(tmp_path):
    strategies = ["kuza55_ps_cpu", "avolkov1_ps_gpu"]
    for gpus in (1, 2, 4):
        sweeps.write_results(tmp_path, [strong_run(name, gpus) for name in strategies])
    section = make_section(tmp_path, "keras_multi_gpu")
    chart, *bars = charts(section)
    assert [each.title.rpartition(": ")[2] for each in bars] == ["speedup on 2 devices", "speedup on 4 devices"]
    lines = {(series.style, series.name): series for series in chart.series}
    assert [name for style, name in lines if style == "line"] == strategies
    published_names = [name for style, name in lines if style == "published"]
    assert sorted(published_names) == sorted(
        f"{strategy} published, {machine}, batch 32 in all"
        for strategy in strategies
        for machine in ("az_2x_m60", "7gforce")
    )
    forced = lines["published", "kuza55_ps_cpu published, 7gforce, batch 32 in all"]
    assert (forced.x, forced.y) == ([2.0, 4.0], [0.5052, 0.3052])  # its error on 6 is no point
    assert "strong scaling here and there" in chart.caption.lower() and "rossumai/keras-multi-gpu" in chart.caption
    rows = cells_by_table(section)["published-keras-multi-gpu-beside"]
    assert (
        {row["scaling published"] for row in rows if row["devices"] != "1"}
        == {row["scaling here"] for row in rows}
        == {"strong"}
    )
    (row,) = [row for row in rows if row["strategy"] == "kuza55_ps_cpu" and row["devices"] == "4"]
    assert (row["samples/s published"], row["speedup published"], row["efficiency published"]) == (
        "66.55",
        "1.22",
        "30.52 %",
    )
    assert (row["batch published"], row["batch here"]) == ("32 in all", "32 in all")
    assert row["hardware published"] == "7gforce" and row["efficiency here"] == "72 %"


def test_weak_scaling_is_no_curve_beside_strong(tmp_path):
    """The rows stand in the table, each with its scaling; no chart has both."""
    write_runs(tmp_path, "resnet50", ["kuza55_ps_cpu"])
    section = make_section(tmp_path, "keras_multi_gpu")
    assert charts(section) == []
    rows = cells_by_table(section)["published-keras-multi-gpu-beside"]
    assert {(row["scaling published"], row["scaling here"]) for row in rows} == {("strong", "weak")}


def test_another_model_or_strategy_is_not_compared(tmp_path):
    sweeps.sweep(tmp_path)
    section = make_section(tmp_path, "keras_multi_gpu", "parallel_strategies", "on_node")
    assert list(cells_by_table(section)) == [
        "published-keras-multi-gpu",
        "published-parallel-strategies",
        "published-on-node",
    ]
    assert charts(section) == []


def test_the_figures_here_are_those_of_the_frame(tmp_path):
    write_runs(tmp_path, "resnet50_v2", ["mirrored_nccl", "mirrored_reduce_cpu"])
    report_data = load_report_data([tmp_path])
    section = make_section(tmp_path, "parallel_strategies")
    (table,) = [block for block in section.blocks if isinstance(block, Table) and block.id.endswith("beside")]
    column = {name: table.columns.index(name) for name in table.columns}
    for row in table.rows:
        strategy = row.cells[column["strategy"]].text
        (expected,) = report_data.pooled.query(f"strategy == '{strategy}' and gpus == 4").to_dict("records")
        assert row.cells[column["samples/s here"]].value == expected["throughput_samples_per_s"]
        assert row.cells[column["speedup here"]].value == expected["speedup_bare"]
        assert row.cells[column["efficiency here"]].value == expected["efficiency_bare"]
        assert row.tags == {"model": "resnet50_v2", "strategy": strategy}
    assert [row.cells[column["speedup published"]].value for row in table.rows] == [1.296, 2.011, 1.66, 1.13]
    assert "ours: scaling, global batch, step s" in table.rows[0].cells[column["remarks"]].text


def test_bars_beside_the_published_ones_at_the_same_devices(tmp_path):
    """The study printed bars for 4 and for 8 GPUs; 8 devices were not measured here."""
    write_runs(tmp_path, "resnet50_v2", ["mirrored_nccl", "mirrored_reduce_cpu"])
    section = make_section(tmp_path, "parallel_strategies")
    (chart,) = [chart for chart in charts(section) if chart.kind == "bars"]
    assert chart.title.endswith("speedup on 4 devices") and has_shape(chart)
    bars = {series.name: dict(zip(series.x, series.y, strict=True)) for series in chart.series}
    pooled = load_report_data([tmp_path]).pooled
    assert bars.pop("here") == {
        row.strategy: row.speedup_bare for row in pooled[pooled["gpus"] == 4].itertuples()
    }  # fmt: skip
    assert bars == {
        "published, rtx2080ti_4, notebook, 512 per device": {"mirrored_nccl": 1.296, "mirrored_reduce_cpu": 2.011},
        "published, rtx2080ti_4, bars": {"mirrored_nccl": 1.13, "mirrored_reduce_cpu": 1.66},
    }


def test_slopes_of_the_thesis(tmp_path):
    write_runs(tmp_path, "materials_cnn", ["horovod_nccl", "horovod_mpi"])
    section = make_section(tmp_path, "thesis")
    rows = cells_by_table(section)["published-thesis-slopes"]
    assert [(row["strategy"], row["hardware published"], row["slope published"]) for row in rows] == [
        ("horovod_nccl", "alpha", "0.45"), ("horovod_mpi", "alpha", "0.44"), ("horovod_nccl", "hpdlf", "0.28"),
        ("horovod_mpi", "hpdlf", "0.26"), ("horovod_nccl", "gpu2", "0.38"),
    ]  # fmt: skip
    assert all(row["over devices"] == "1, 2, 4" and float(row["slope here"].split()[0]) > 0.5 for row in rows)


@pytest.mark.parametrize("study", published.list_studies())
def test_all_rows_of_a_study_are_shown_with_their_source(tmp_path, study):
    sweeps.sweep(tmp_path)
    section = make_section(tmp_path, study)
    (block,) = [
        block
        for block in section.blocks
        if isinstance(block, Table) and block.id == f"published-{study}".replace("_", "-")
    ]
    assert len(block.rows) == len(published.load_published([study]))
    assert published.load_study(study).source in block.caption
    assert all(row.cells[-1].text for row in block.rows)
    sentences = " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))
    assert published.load_study(study).source.rstrip(".") in sentences
