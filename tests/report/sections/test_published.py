"""Figures of published studies beside measured ones: only like with like, each with its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalebench.analysis import published
from scalebench.core.result import Result
from scalebench.report.document import Chart, Paragraph, Section, Table
from scalebench.report.report_data import ReportData, load_report_data
from scalebench.report.sections.published import section
from tests.builders import sweeps
from tests.builders.runs import simulated_config


def named(model: str) -> Any:
    return dataclasses.replace(simulated_config().model, name=model)


def measured(folder: Path, model: str, strategies: Sequence[str], **changes: Any) -> None:
    """One, two and four devices of each, and the bare baseline."""
    found: list[Result] = [sweeps.run("bare_torch", 1, model=named(model), **changes)]
    found += [sweeps.run(name, gpus, model=named(model), **changes) for name in strategies for gpus in (1, 2, 4)]
    sweeps.write(folder, found)


def strong(strategy: str, gpus: int) -> Result:
    """32 samples over all devices, as the study had."""
    train = dataclasses.replace(simulated_config().train, global_batch=32)
    found = sweeps.run(strategy, gpus, model=named("resnet50"), scaling="strong", train=train)
    scale = dataclasses.replace(found.scale, batch_per_device=32 // gpus, global_batch=32)
    return dataclasses.replace(found, scale=scale)


def told(folder: Path, *studies: str) -> Section:
    evidence = dataclasses.replace(load_report_data([folder]), published=published.load_published(studies))
    found = section(evidence)
    assert found is not None
    return found


def tables(found: Section) -> dict[str, list[dict[str, str]]]:
    """Cells of each by column."""
    return {
        block.id: [
            dict(zip(block.columns, [cell.text for cell in row.cells], strict=True)) for row in block.rows
        ]
        for block in found.blocks
        if isinstance(block, Table)
    }  # fmt: skip


def charts(found: Section) -> list[Chart]:
    return [block for block in found.blocks if isinstance(block, Chart)]


def test_nothing_where_no_study_was_asked_for(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path)
    evidence: ReportData = load_report_data([tmp_path])
    assert section(evidence) is None
    assert section(dataclasses.replace(evidence, published=published.load_published([]))) is None


def test_strong_scaling_beside_strong(tmp_path: Path) -> None:
    strategies = ["kuza55_ps_cpu", "avolkov1_ps_gpu"]
    for gpus in (1, 2, 4):
        sweeps.write(tmp_path, [strong(name, gpus) for name in strategies])
    found = told(tmp_path, "keras_multi_gpu")
    (chart,) = charts(found)
    drawn = {(one.style, one.name): one for one in chart.series}
    assert [name for style, name in drawn if style == "line"] == strategies
    there = [name for style, name in drawn if style == "published"]
    assert sorted(there) == sorted(
        f"{strategy} published, {machine}, batch 32 in all"
        for strategy in strategies
        for machine in ("az_2x_m60", "7gforce")
    )
    forced = drawn["published", "kuza55_ps_cpu published, 7gforce, batch 32 in all"]
    assert (forced.x, forced.y) == ([2.0, 4.0], [0.5052, 0.3052])  # its error on 6 is no point
    assert "strong scaling here and there" in chart.caption.lower() and "rossumai/keras-multi-gpu" in chart.caption
    rows = tables(found)["published-keras-multi-gpu-beside"]
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
    assert row["hardware published"] == "7gforce" and "[" in row["efficiency here"]


def test_weak_scaling_is_no_curve_beside_strong(tmp_path: Path) -> None:
    """The rows stand in the table, each with its scaling; no chart has both."""
    measured(tmp_path, "resnet50", ["kuza55_ps_cpu"])
    found = told(tmp_path, "keras_multi_gpu")
    assert charts(found) == []
    rows = tables(found)["published-keras-multi-gpu-beside"]
    assert {(row["scaling published"], row["scaling here"]) for row in rows} == {("strong", "weak")}


def test_another_model_or_strategy_is_not_compared(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path)
    found = told(tmp_path, "keras_multi_gpu", "parallel_strategies", "on_node")
    assert list(tables(found)) == ["published-keras-multi-gpu", "published-parallel-strategies", "published-on-node"]
    assert charts(found) == []


def test_the_figures_here_are_those_of_the_frame(tmp_path: Path) -> None:
    measured(tmp_path, "resnet50_v2", ["mirrored_nccl", "mirrored_reduce_cpu"])
    evidence = load_report_data([tmp_path])
    found = told(tmp_path, "parallel_strategies")
    (table,) = [block for block in found.blocks if isinstance(block, Table) and block.id.endswith("beside")]
    at = {name: table.columns.index(name) for name in table.columns}
    for row in table.rows:
        strategy = row.cells[at["strategy"]].text
        (mine,) = evidence.pooled.query(f"strategy == '{strategy}' and gpus == 4").to_dict("records")
        assert row.cells[at["samples/s here"]].value == mine["throughput_samples_per_s"]
        assert row.cells[at["speedup here"]].value == mine["speedup_bare"]
        assert row.cells[at["efficiency here"]].value == mine["efficiency_bare"]
        assert row.tags == {"model": "resnet50_v2", "strategy": strategy}
    assert [row.cells[at["speedup published"]].value for row in table.rows] == [1.296, 2.011]
    assert "ours: scaling, global batch, step s" in table.rows[0].cells[at["remarks"]].text


def test_slopes_of_the_thesis(tmp_path: Path) -> None:
    measured(tmp_path, "materials_cnn", ["horovod_nccl", "horovod_mpi"])
    found = told(tmp_path, "thesis")
    rows = tables(found)["published-thesis-slopes"]
    assert [(row["strategy"], row["hardware published"], row["slope published"]) for row in rows] == [
        ("horovod_nccl", "alpha", "0.45"), ("horovod_mpi", "alpha", "0.44"), ("horovod_nccl", "hpdlf", "0.28"),
        ("horovod_mpi", "hpdlf", "0.26"), ("horovod_nccl", "gpu2", "0.38"),
    ]  # fmt: skip
    assert all(row["over devices"] == "1, 2, 4" and float(row["slope here"].split()[0]) > 0.5 for row in rows)


@pytest.mark.parametrize("study", [name for name, _ in published.list_studies()])
def test_all_of_a_study_is_told_with_where_it_stands(tmp_path: Path, study: str) -> None:
    sweeps.sweep(tmp_path)
    found = told(tmp_path, study)
    (block,) = [
        block
        for block in found.blocks
        if isinstance(block, Table) and block.id == f"published-{study}".replace("_", "-")
    ]
    assert len(block.rows) == len(published.load_published([study]))
    assert published.load_study(study).source in block.caption
    assert all(row.cells[-1].text for row in block.rows)
    said = " ".join(block.text for block in found.blocks if isinstance(block, Paragraph))
    assert published.load_study(study).source.rstrip(".") in said


def test_no_measured_figure_knows_of_them(tmp_path: Path) -> None:
    measured(tmp_path, "resnet50_v2", ["mirrored_nccl"])
    evidence = load_report_data([tmp_path])
    before = evidence.pooled.copy()
    evidence.published = published.load_published(["parallel_strategies"])
    section(evidence)
    assert evidence.pooled.equals(before)
