"""Memory per device: shares of a reference, sharding costs and rows out of memory, for records with known bytes."""

import dataclasses

import pytest

from scalebench.analysis.memory import format_strategy, group_by_model
from scalebench.report import document
from scalebench.report.document import Chart, Table
from scalebench.report.sections import memory
from scalebench.report.sections.memory import list_terminal_sentences, make_terminal_table
from tests.builders import sweeps
from tests.builders.runs import simulated_config
from tests.report.section_blocks import build_blocks, get_block, select_blocks

BARE = sweeps.run_with_memory("bare_torch", 1, sweeps.FULL_STATE_BYTES)
FULL = sweeps.run_with_memory("ddp_gloo", 2, sweeps.FULL_STATE_BYTES)
HALF = sweeps.run_with_memory("fsdp_gloo", 2, sweeps.FULL_STATE_BYTES // 2, peak=20_000)
THREE_QUARTERS = sweeps.run_with_memory("zero1", 2, 3 * sweeps.FULL_STATE_BYTES // 4)


def of(*results):
    return group_by_model(sweeps.pool(results).make_frame())


def shares(model):
    return {f"{row['strategy']} {row['gpus']}": model.share(row) for row in model.rows}


def list_competing(model):
    return [[row["strategy"] for row in rows] for rows in model.competing_rows()]


def test_without_a_baseline_state_shares_refer_to_one_device_and_never_to_several():
    (model,) = of(sweeps.run_with_memory("ddp_gloo", 1, sweeps.FULL_STATE_BYTES), HALF)
    assert shares(model) == {"ddp_gloo 1": 1.0, "fsdp_gloo 2": 0.5}
    for singles in ((("ddp_gloo", 1), ("zero1", 2)), (("zero1", 2), ("ddp_gloo", 1))):  # the one that keeps most
        own = (sweeps.run_with_memory(name, 1, sweeps.FULL_STATE_BYTES // share) for name, share in singles)
        (model,) = of(*own, HALF)
        assert shares(model)["fsdp_gloo 2"] == 0.5
    (model,) = of(THREE_QUARTERS, HALF)
    assert shares(model) == {"zero1 2": None, "fsdp_gloo 2": None}
    train = dataclasses.replace(simulated_config().train, optimizer="sgd")
    assert len(of(HALF, sweeps.run_with_memory("ddp_gloo", 4, 4 * sweeps.PARAMETERS, train=train))) == 2
    small = sweeps.run_with_memory("fsdp_gloo", 2, 100)
    keras = sweeps.run_with_memory("mirrored", 2, 3 * sweeps.PARAMETERS)
    small.workload.model_params = 50
    keras.scale.framework = "tensorflow"
    unknown = sweeps.run_with_memory("zero1", 2, sweeps.FULL_STATE_BYTES // 2)
    unknown.ranks[1].state_bytes = [None]  # of one device, which makes the row null
    (model,) = of(BARE, small, keras, unknown)
    assert shares(model) == {"bare_torch 1": 1.0, "fsdp_gloo 2": None, "mirrored 2": None, "zero1 2": None}
    assert model.rows[3]["state_bytes"] is None


def test_rows_out_of_memory_are_listed_and_searches_do_not_compete():
    assert format_strategy({"strategy": "ddp", "options": "a=1 b=2"}) == "ddp a=1 b=2"
    (model,) = of(HALF, sweeps.out_of_memory("ddp_gloo", 2), sweeps.failed_run("horovod_gloo"))
    assert [row["strategy"] for row in model.out_of_memory] == ["ddp_gloo"]
    assert list_competing(model) == [["fsdp_gloo", "ddp_gloo"]]
    (model,) = of(FULL, sweeps.run_with_batch_search("fsdp_gloo", 2, 400, 10**9, sweeps.FULL_STATE_BYTES // 2))
    assert list_competing(model) == [["ddp_gloo"]]


def test_bars_of_one_height_are_no_chart_and_a_long_table_ends(tmp_path, monkeypatch):
    section = build_blocks(memory.list_blocks, tmp_path / "oom", [BARE, FULL, sweeps.out_of_memory("ddp_gloo", 4)])
    assert select_blocks(section, Chart) == [] and len(select_blocks(section, Table)) == 1
    monkeypatch.setattr(document, "MAX_ROWS", 2)
    many = [BARE, *(sweeps.run_with_memory("fsdp_gloo", gpus, sweeps.FULL_STATE_BYTES // 2) for gpus in (2, 3, 4, 5))]
    table = get_block(build_blocks(memory.list_blocks, tmp_path / "many", many), Table)
    assert len(table.rows) == 2 and "2 of 5 rows" in table.caption


@pytest.mark.parametrize("results", [
    [sweeps.run("ddp_gloo", 2), sweeps.failed_run()], [sweeps.out_of_memory("ddp_gloo", 2)], [BARE, FULL],
    [BARE, sweeps.run_with_memory("ddp_gloo", 2, None, peak=10**6)],
], ids=["nothing recorded", "nothing had room", "all keep a whole model", "a peak alone"])  # fmt: skip
def test_nothing_is_shown_where_it_would_say_nothing(results, tmp_path):
    assert make_terminal_table(sweeps.pool(results).make_frame()) is None
    assert build_blocks(memory.list_blocks, tmp_path, results) == []
    assert BARE in results or of(*results) == []


def list_sentences(*results):
    configurations = sweeps.pool(results)
    return list_terminal_sentences(configurations.make_frame(), configurations.estimate_ratio)


def test_sentences_name_what_had_no_room_and_models():
    full = sweeps.run_with_memory("ddp_gloo", 1, sweeps.FULL_STATE_BYTES)
    sentences = list_sentences(HALF, full, sweeps.out_of_memory("ddp_gloo", 2))
    assert sentences[-1] == "on 2 devices out of memory: ddp_gloo; had room: fsdp_gloo"
    results = [BARE, HALF, *(dataclasses.replace(run, run_id=f"o{run.run_id}", fingerprint=f"o{run.fingerprint}",
                                                 workload=dataclasses.replace(run.workload, model="other"))
                             for run in (BARE, HALF))]  # fmt: skip
    assert {text.partition(",")[0] for text in list_sentences(*results)} == {"materials_cnn", "other"}
