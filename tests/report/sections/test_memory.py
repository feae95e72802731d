"""The section memory, and its sentences in the terminal."""

import pytest

from scalebench.report.document import Chart, Table
from scalebench.report.sections import memory
from scalebench.report.sections.memory import MAX_TERMINAL_SENTENCES, list_terminal_sentences, make_terminal_table
from scalebench.sweeps.console import Console
from tests.builders import sweeps
from tests.builders.sweeps import FULL_STATE_BYTES, out_of_memory, run_with_batch_search, run_with_memory
from tests.report.section_blocks import build_section, get_block, select_blocks


def test_without_savings_there_is_no_section_and_bars_of_one_height_are_no_chart(tmp_path):
    full = [run_with_memory("bare_torch", 1, FULL_STATE_BYTES), run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES)]
    assert build_section(memory, tmp_path / "full", full) is None
    section = build_section(memory, tmp_path / "oom", [*full, out_of_memory("ddp_gloo", 4)])
    assert select_blocks(section, Chart) == [] and len(select_blocks(section, Table)) == 1
    searched = [run_with_batch_search("ddp_gloo", 2, 400, 1_500_000_000, None)]
    assert build_section(memory, tmp_path / "searched", [*full, *searched]) is not None


def test_no_more_rows_than_a_table_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MAX_ROWS", 2)
    results = [run_with_memory("bare_torch", 1, FULL_STATE_BYTES)]
    results += [run_with_memory("fsdp_gloo", gpus, FULL_STATE_BYTES // 2) for gpus in (2, 3, 4, 5)]
    table = get_block(build_section(memory, tmp_path, results), Table)
    assert len(table.rows) == 2 and "3 more rows" in table.caption


BARE = run_with_memory("bare_torch", 1, FULL_STATE_BYTES)
ZERO, SHARDED = (
    run_with_memory("zero1", 2, 3 * FULL_STATE_BYTES // 4),
    run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2, peak=20_000),
)
ALL = run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES)


def pool(*results):
    return sweeps.pool(results).make_frame()


def list_sentences(*results):
    configurations = sweeps.pool(results)
    return list_terminal_sentences(configurations.make_frame(), configurations.estimate_ratio)


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
def test_no_table_where_it_would_say_nothing(results):
    assert make_terminal_table(pool(*results)) is None


@pytest.mark.parametrize(
    ("repeats", "noise", "ending"),
    [
        (3, 0.01, "the fastest that keeps all"),
        (3, 0.9, ", a difference that is not resolved"),
        (1, 0.01, ", which is not sure: one repeat, measure.repeats=3 decides"),
    ],
)
def test_the_price_has_its_uncertainty(repeats, noise, ending):
    """0.85 / 0.9."""
    two = [
        run_with_memory(name, 2, state, repeat=repeat, noise=noise)
        for name, state in (("ddp_gloo", FULL_STATE_BYTES), ("zero1", 100))
        for repeat in range(repeats)
    ]
    assert list_sentences(BARE, *two)[1].endswith(ending)


def test_out_of_memory_runs_are_listed():
    full = run_with_memory("ddp_gloo", 1, FULL_STATE_BYTES)
    sentences = list_sentences(SHARDED, full, out_of_memory("ddp_gloo", 2))
    assert sentences[-1] == "on 2 devices out of memory: ddp_gloo; had room: fsdp_gloo"
    assert not [sentence for sentence in sentences if "no run" in sentence]


def test_no_more_sentences_than_a_window_holds_and_each_names_its_model():
    results = []
    for number in range(MAX_TERMINAL_SENTENCES + 5):
        for run in (
            run_with_memory("bare_torch", 1, FULL_STATE_BYTES),
            run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2),
        ):
            run.workload.model = f"m{number}"
            run.run_id = run.fingerprint = f"{run.run_id}-{number}"
            results.append(run)
    *sentences, last = list_sentences(*results)
    assert len(sentences) == MAX_TERMINAL_SENTENCES and sentences[0].startswith("m0, ")
    assert last.startswith("memory: ") and last.endswith(" more are in the report")


def test_below_the_table_of_a_sweep(tmp_path, capsys):
    sweeps.write_results(tmp_path, [BARE, SHARDED])
    Console().print_table([tmp_path])
    assert "50 % under fsdp_gloo" in " ".join(capsys.readouterr().out.split())
