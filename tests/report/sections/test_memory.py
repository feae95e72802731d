"""The section memory, and its sentences in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from scalebench.analysis.repeats import pool_results
from scalebench.core.result import Result
from scalebench.report.document import MAX_ROWS, Chart, Paragraph, Table
from scalebench.report.sections import memory
from scalebench.report.sections.memory import MAX_TERMINAL_SENTENCES, list_terminal_sentences, make_terminal_table
from scalebench.sweeps.console import Console
from tests.builders import sweeps
from tests.builders.sweeps import FULL_STATE_BYTES, out_of_memory, run_with_batch_search, run_with_memory
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    build_section,
    cell_texts,
    check_points,
    get_block,
    get_column,
    select_blocks,
    write_report_data,
)


def test_table_sentences_and_bars(tmp_path: Path) -> None:
    report_data = write_report_data(
        tmp_path,
        [
            run_with_memory("bare_torch", 1, FULL_STATE_BYTES, peak=30_000),
            run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES, peak=31_000),
            run_with_memory(SCRIPT, 2, FULL_STATE_BYTES // 2),
            run_with_memory("horovod_gloo", 2, None),
            out_of_memory("ddp_gloo", 4),
        ],
    )
    section = memory.section(report_data)
    table = get_block(section, Table, "memory-table")
    assert get_column(table, "state of a device") == {
        "bare_torch 1": FULL_STATE_BYTES, "ddp_gloo 2": FULL_STATE_BYTES, f"{SCRIPT} 2": FULL_STATE_BYTES // 2,
        "horovod_gloo 2": None, "ddp_gloo 4": None,
    }  # fmt: skip
    assert list(get_column(table, "of a whole model").values()) == [1.0, 1.0, 0.5, None, None]
    assert list(get_column(table, "peak of a device").values()) == [30_000, 31_000, None, None, None]
    assert list(get_column(table, "status").values()) == ["ok"] * 4 + ["oom"]
    assert "16 bytes" in table.caption and "status" not in table.numeric
    sentences = [block_text(paragraph) for paragraph in select_blocks(section, Paragraph)]
    assert (
        f"50 % under {SCRIPT}." in sentences[0] and "On 4 devices out of memory: ddp_gloo; none had room." in sentences
    )
    chart = get_block(section, Chart, "memory-state")
    assert chart.kind == "bars" and check_points(chart, report_data.pooled, "state_bytes") == 3


def test_bars_of_one_height_are_no_chart(tmp_path: Path) -> None:
    section = build_section(
        memory,
        tmp_path,
        [run_with_memory("bare_torch", 1, FULL_STATE_BYTES), run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES)],
    )
    assert (
        select_blocks(section, Chart) == []
        and select_blocks(section, Paragraph) == []
        and len(select_blocks(section, Table)) == 1
    )


def test_without_recorded_state_there_is_no_section(tmp_path: Path) -> None:
    assert build_section(memory, tmp_path / "1") is None
    assert build_section(memory, tmp_path / "2", [sweeps.failed_run()]) is None


def test_no_more_rows_than_a_table_holds(tmp_path: Path) -> None:
    many = [run_with_memory("ddp_gloo", 1, FULL_STATE_BYTES) for _ in range(MAX_ROWS + 3)]
    for number, run in enumerate(many):
        run.run_id = run.fingerprint = str(number)
    table = get_block(build_section(memory, tmp_path, many), Table)
    assert len(table.rows) == MAX_ROWS and "3 more rows" in table.caption


BARE = run_with_memory("bare_torch", 1, FULL_STATE_BYTES)
ZERO, SHARDED = (
    run_with_memory("zero1", 2, 3 * FULL_STATE_BYTES // 4),
    run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2, peak=20_000),
)
ALL = run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES)


def pool(*results: Result) -> pd.DataFrame:
    return pool_results(results, [Path(str(number)) for number in range(len(results))])


@pytest.mark.parametrize(
    "results",
    [
        [sweeps.run("ddp_gloo", 2), sweeps.failed_run()],
        [BARE, ALL],
        [BARE, run_with_memory("ddp_gloo", 2, None, peak=10**6)],
        [out_of_memory("ddp_gloo", 2)],
    ],
    ids=["nothing recorded", "all keep a whole model", "a peak alone", "nothing had room"],
)
def test_no_table_where_it_would_say_nothing(results: Sequence[Result]) -> None:
    assert make_terminal_table(pool(*results)) is None


def test_a_row_for_each_with_what_is_known() -> None:
    table = make_terminal_table(
        pool(BARE, SHARDED, run_with_memory("horovod_gloo", 2, None), out_of_memory("ddp_gloo", 2))
    )
    assert table is not None and table.columns == [
        "strategy", "gpus", "batch per device", "samples/s (95 %)", "state of a device", "of a whole model",
        "of a parameter", "peak of a device", "all processes", "status",
    ]  # fmt: skip
    cells = {row[0]: [cell for cell in row if cell and "±" not in cell] for row in cell_texts(table)}
    assert cells == {
        "bare_torch": ["bare_torch", "1", "10", "16.0 kB", "100 %", "16.0 B", "1.00 MB", "ok"],
        "fsdp_gloo": ["fsdp_gloo", "2", "10", "8.00 kB", "50 %", "8.0 B", "20.0 kB", "2.00 MB", "ok"],
        "horovod_gloo": ["horovod_gloo", "2", "10", "2.00 MB", "ok"],  # what was not recorded is not shown
        "ddp_gloo": ["ddp_gloo", "2", "10", "oom"],
    }


def test_strategies_that_keep_less_are_listed_with_their_price() -> None:
    kept_less, price, room = list_terminal_sentences(pool(BARE, ALL, ZERO, SHARDED))
    assert kept_less == (
        "on 2 devices a device keeps of weights, gradients and optimizer's state, of the 16.0 kB of bare_torch: "
        "75 % under zero1, 50 % under fsdp_gloo"
    )
    # What ddp_gloo keeps of its throughput there is 0.9, and 0.85 of the others'.
    assert price.startswith("on 2 devices fsdp_gloo, the fastest that keeps less, has 0.94 [")
    assert price.endswith(" times the samples/s of ddp_gloo, the fastest that keeps all")
    assert room == "no run was out of memory: nothing had to be cut to fit, and what is saved is room for more"


@pytest.mark.parametrize(
    ("blocks", "noise", "ending"),
    [
        (32, 0.01, "the fastest that keeps all"),
        (32, 0.6, ", a difference that is not resolved"),
        (2, 0.01, ", without an interval to tell it from noise"),
    ],
)
def test_the_price_has_its_uncertainty(blocks: int, noise: float, ending: str) -> None:
    """0.85 / 0.9."""
    two = [
        run_with_memory(name, 2, state, blocks=blocks, noise=noise)
        for name, state in (("ddp_gloo", FULL_STATE_BYTES), ("zero1", 100))
    ]
    assert list_terminal_sentences(pool(BARE, *two))[1].endswith(ending)


def test_out_of_memory_runs_are_listed() -> None:
    sentences = list_terminal_sentences(
        pool(SHARDED, run_with_memory("ddp_gloo", 1, FULL_STATE_BYTES), out_of_memory("ddp_gloo", 2))
    )
    assert sentences[-1] == "on 2 devices out of memory: ddp_gloo; had room: fsdp_gloo"
    assert not [sentence for sentence in sentences if "no run" in sentence]


def test_the_largest_batches_within_one_limit() -> None:
    results = [
        run_with_batch_search(name, 2, batch, 1_500_000_000, None)
        for name, batch in (("ddp_gloo", 400), ("fsdp_gloo", 1500))
    ]
    assert list_terminal_sentences(pool(*results, run_with_batch_search("ddp_gloo", 1, 90, None, None))) == [
        "largest batch per device on 2 devices, within 1.50 GB a process: 1,500 under fsdp_gloo, 400 under ddp_gloo",
        "largest batch per device on 1 device: 90 under ddp_gloo",
    ]


def test_models_are_named_where_there_are_several() -> None:
    other = run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 4)
    other.workload.model, other.run_id, other.fingerprint = "mlp", "other", "other"
    assert {sentence.partition(",")[0] for sentence in list_terminal_sentences(pool(BARE, SHARDED, other))} == {
        "materials_cnn"
    }


def test_no_more_sentences_than_a_window_holds() -> None:
    results = []
    for number in range(MAX_TERMINAL_SENTENCES + 5):
        pair = [
            run_with_memory("bare_torch", 1, FULL_STATE_BYTES),
            run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2),
        ]
        for run in pair:
            run.workload.model = f"m{number}"
            run.run_id = run.fingerprint = f"{run.run_id}-{number}"
        results += pair
    sentences = list_terminal_sentences(pool(*results))
    assert (
        len(sentences) == MAX_TERMINAL_SENTENCES + 1
        and sentences[-1].startswith("memory: ")
        and sentences[-1].endswith(" more are in the report")
    )


def test_below_the_table_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write_results(tmp_path / "1", [BARE, SHARDED])
    Console().print_table([tmp_path / "1"])
    assert "50 % under fsdp_gloo" in " ".join(capsys.readouterr().out.split())
    sweeps.write_results(tmp_path / "2", [BARE, ALL])
    Console().print_table([tmp_path / "2"])
    assert "state of a device" not in capsys.readouterr().out
