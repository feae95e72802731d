"""More devices or a larger batch in the report: the pairs, and what fewer synchronizations save."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.result import Result
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.sections import devices_or_batch
from tests.analysis.test_devices_or_batch import STEP_S, aimed, batched
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    build_section,
    get_block,
    list_ids,
    select_blocks,
    write_report_data,
)


def make_runs() -> list[Result]:
    return [batched(name, gpus, batch) for batch in (10, 20, 40) for name, gpus in STEP_S]


def test_pairs_are_the_frames_figures(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path, make_runs())
    section = devices_or_batch.section(report_data)
    table = get_block(section, Table, "devices-or-batch-choices")
    shown = [[cell.text for cell in row.cells] for row in table.rows]
    assert [row[1:4] + row[5:7] for row in shown] == [
        ["ddp_gloo", "2", "10", "ddp_gloo", "20"],
        ["ddp_gloo", "2", "10", "bare_torch", "20"],
        ["ddp_gloo", "2", "20", "ddp_gloo", "40"],
        ["ddp_gloo", "2", "20", "bare_torch", "40"],
    ]
    assert "time ratio (95 %)" not in table.columns  # nothing trained to a target
    rate = {
        (row["strategy"], row["gpus"], row["batch_per_device"]): row["throughput_samples_per_s"]
        for row in report_data.pooled.to_dict("records")
    }
    ratio = table.rows[0].cells[list(table.columns).index("ratio (95 %)")]
    assert ratio.value == rate["ddp_gloo", 2, 10] / rate["ddp_gloo", 1, 20] and ratio.text.endswith("]")
    chart = get_block(section, Chart, "devices-or-batch-throughput")
    assert [series.name for series in chart.series] == [
        "bare_torch, 1 device", "ddp_gloo, 1 device", "ddp_gloo, 2 devices"
    ]  # fmt: skip
    assert list(chart.series[2].x) == [20, 40, 80]
    assert len(set(list_ids(section))) == len(list_ids(section))


def test_the_largest_pair_is_answered_in_a_sentence(tmp_path: Path) -> None:
    (answer,) = select_blocks(build_section(devices_or_batch, tmp_path, make_runs()), Paragraph)
    assert answer.kind == "answer" and answer.text == (
        "2 devices of 20 samples (ddp_gloo) have 0.90 times the throughput of one of 40 (ddp_gloo)."
    )


def test_an_unresolved_pair_is_reported_as_such(tmp_path: Path) -> None:
    pair = [batched("ddp_gloo", 1, 20), batched("ddp_gloo", 2, 10)]
    for run in pair:
        for rank in run.ranks:
            rank.block_s = [0.64 * seconds / sum(rank.block_s) for seconds in rank.block_s]
    (answer, *_) = select_blocks(build_section(devices_or_batch, tmp_path, pair), Paragraph)
    assert answer.text.endswith(": no difference in throughput is resolved.")


def test_times_to_the_target_have_columns_where_there_is_one(tmp_path: Path) -> None:
    pair = [aimed(1, 20, seed, 6.0 + seed) for seed in range(3)] + [aimed(2, 10, seed, 3.0 + seed) for seed in range(3)]
    section = build_section(devices_or_batch, tmp_path / "a", pair)
    (row,) = get_block(section, Table, "devices-or-batch-choices").rows
    assert [cell.text for cell in row.cells[-3:-1]] == ["6.95 s (3 seeds)", "3.91 s (3 seeds)"][::-1]
    assert row.cells[-1].value == pytest.approx((6 * 7 * 8 / (3 * 4 * 5)) ** (1 / 3))
    missed = [aimed(1, 20, 0, 6.0, reached=False), aimed(2, 10, 0, 3.0)]
    (row,) = get_block(build_section(devices_or_batch, tmp_path / "b", missed), Table, "devices-or-batch-choices").rows
    assert [cell.text for cell in row.cells[-3:]] == ["3 s", "never", ""]


def test_gains_from_fewer_synchronizations(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path, [batched("ddp_gloo", 2, batch) for batch in (10, 20, 50)])
    section = devices_or_batch.section(report_data)
    (table,) = select_blocks(section, Table)
    assert table.id == "devices-or-batch-gains" and select_blocks(section, Chart) == []
    assert [[cell.text for cell in row.cells[1:4]] for row in table.rows] == [
        ["ddp_gloo, 2 devices", "10 to 20", "50 to 25"],
        ["ddp_gloo, 2 devices", "20 to 50", "25 to 10"],
    ]
    sync = dict(zip(report_data.pooled["batch_per_device"], report_data.pooled["sync_per_epoch_s"], strict=True))
    epoch = dict(zip(report_data.pooled["batch_per_device"], report_data.pooled["epoch_s"], strict=True))
    for row, (before, after) in zip(table.rows, ((10, 20), (20, 50)), strict=True):
        assert row.cells[4].value == pytest.approx(sync[before] - sync[after])
        assert row.cells[5].value == pytest.approx(epoch[before] - epoch[after])
        assert row.cells[6].value == pytest.approx(row.cells[4].value / row.cells[5].value)  # type: ignore[operator]


def test_nothing_to_say(tmp_path: Path) -> None:
    assert build_section(devices_or_batch, tmp_path / "usual") is None
    assert (
        build_section(devices_or_batch, tmp_path / "one", [batched("ddp_gloo", 1, batch) for batch in (10, 20)]) is None
    )


def test_text_stays_text(tmp_path: Path) -> None:
    changed = make_runs()
    for run in changed:
        run.workload.model = SCRIPT
    section = build_section(devices_or_batch, tmp_path, changed)
    assert section is not None and any(SCRIPT in block_text(block) for block in section.blocks)
    assert {row.cells[0].text for row in get_block(section, Table, "devices-or-batch-choices").rows} == {SCRIPT}
