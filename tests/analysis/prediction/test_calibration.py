"""Figures of a machine from rows, with what is wrong with them; the stages of a run from its record or network."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.analysis.prediction.calibration import (
    DevicePace,
    collect_step_work,
    combine_rates,
    find_link_rate,
    find_micro_batches,
    find_stages,
    fit_device_pace,
    group_syncs_by_link,
    link_key,
    recorded_stages,
)
from scalebench.analysis.prediction.cost_model import ModelStage, StepWork
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.spec import ModelSpec
from tests.builders.parallelism_runs import FIRST_SHARE, MLP, SENT_BYTES, ddp_run, make_parallel_run, pipeline_run

WORK = StepWork(1e6, 4e6, 1, 0.01)
BARE: dict[str, Any] = {
    "flops_per_sample": 1e6, "gradient_bytes": 4_000_000, "optimizer_s": 0.01, "global_batch": 10,
    "throughput_samples_per_s": 500.0,
}  # fmt: skip
DATA: dict[str, Any] = {
    "hardware": "cpu", "machine": "a", "framework": "torch", "gpus": 2, "nodes": 1, "gradient_bytes": None,
    "sync_isolated_s": 0.04,
}  # fmt: skip


def record(row: object) -> Result:
    return ddp_run(8, 0.1, messages=4)


def gone(row: object) -> Result:
    raise InputError("gone")


def test_work_is_of_the_bare_row_where_the_other_does_not_tell() -> None:
    pace = DevicePace(0.002, 0.001, 0.01)
    assert collect_step_work(DATA, BARE, pace, record) == StepWork(1e6, 4_000_000, 4, 0.01, 0.002)
    assert collect_step_work({**DATA, "gradient_bytes": 8}, BARE, pace, gone) == StepWork(1e6, 8, 1, 0.01, 0.002)
    assert combine_rates(WORK, pace, 1e8).flops_per_s == pytest.approx(1e9)
    with pytest.raises(InputError, match="no link is known"):
        combine_rates(WORK, pace, None)


def test_one_batch_gives_the_samples_and_two_the_pass() -> None:
    assert fit_device_pace([BARE]) == DevicePace(0.0, pytest.approx((0.02 - 0.01) / 10), 0.01)
    larger = {**BARE, "global_batch": 40, "throughput_samples_per_s": 40 / (0.01 + 0.022)}  # 6 ms and 0.4 ms a sample
    assert fit_device_pace([BARE, larger]) == DevicePace(pytest.approx(0.006), pytest.approx(4e-4), 0.01)
    assert fit_device_pace([BARE, {**larger, "optimizer_s": None}]).pass_s == 0
    slower = {**larger, "throughput_samples_per_s": 40 / (0.01 + 0.1)}  # than four times as long for four times as many
    assert fit_device_pace([BARE, slower]) == DevicePace(0.0, pytest.approx(1e-3), 0.01)
    assert fit_device_pace([{**BARE, "optimizer_s": -1e-5}]).optimizer_s == 0  # a difference within noise


def test_without_a_figure_there_is_no_pace() -> None:
    with pytest.raises(InputError, match="baseline=bare adds it"):
        fit_device_pace([])
    with pytest.raises(InputError, match="without the parts"):
        fit_device_pace([{**BARE, "optimizer_s": None}])
    with pytest.raises(InputError, match="the optimizer takes all"):
        fit_device_pace([{**BARE, "optimizer_s": 0.02}])


def test_links_are_those_of_as_many_devices_of_a_machine() -> None:
    rows = [DATA, {**DATA, "gpus": 4}, {**DATA, "sync_isolated_s": None}, {**DATA, "gpus": 1}]
    actual = group_syncs_by_link(rows, record)
    assert {key[3]: len(several) for key, several in actual.items()} == {2: 1, 4: 1}
    (one,) = actual[link_key(DATA)]
    assert (one.devices, one.messages, one.size_bytes, one.seconds) == (2, 4, 4_000_000, 0.04)
    assert group_syncs_by_link(rows, gone) == {}


def test_nodes_choose_the_link_of_the_yaml() -> None:
    def linked(row: object) -> Result:
        run = make_parallel_run("ddp_gloo", 8, None)
        run.spec["hardware"]["links"] = {"intra_node_bytes_per_s": 5e9, "inter_node_bytes_per_s": 1_000_000_000}
        return run

    assert (find_link_rate(DATA, {}, linked), find_link_rate({**DATA, "nodes": 2}, {}, linked)) == (5e9, 1e9)
    assert find_link_rate(DATA, {}, record) is None


def test_where_nothing_is_recorded_operations_are_balanced() -> None:
    first, last = find_stages(make_parallel_run("model_parallel", 8, None))
    assert first.share == pytest.approx(FIRST_SHARE) and first.share + last.share == pytest.approx(1)
    assert (first.sent_bytes, last.sent_bytes) == (SENT_BYTES, 0)  # 2000 float32 numbers
    assert first.parameter_bytes + last.parameter_bytes == 4 * 9_237_101


def test_a_record_is_believed() -> None:
    run = pipeline_run("pipeline_gpipe", 8, 0.1, micro_batches=4)
    assert find_stages(run) == [
        ModelStage(pytest.approx(80_000 / 9_230_300), 1_000_000, 16_000.0),
        ModelStage(pytest.approx(9_150_300 / 9_230_300), 3_000_000, 0.0),
    ]
    assert find_micro_batches(run) == 4
    run.ranks[1].stages = []
    assert recorded_stages(run) == [] and find_stages(run)[0].sent_bytes == SENT_BYTES  # half a chain tells nothing


def test_micro_batches_are_those_asked_for() -> None:
    run = make_parallel_run("pipeline_gpipe", 8, None)
    assert find_micro_batches(run) == 2
    run.spec["strategy"]["options"] = {"micro_batches": 8}
    assert find_micro_batches(run) == 8
    run.spec["strategy"]["options"] = {"micro_batches": None}
    assert find_micro_batches(run) == 4
    assert find_micro_batches(make_parallel_run("model_parallel", 8, None)) == 1


def test_unknown_networks_are_errors() -> None:
    own = dataclasses.replace(MLP, torch="mine:network")
    with pytest.raises(InputError, match="only the framework knows"):
        find_stages(make_parallel_run("model_parallel", 8, None, model=own))
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        find_stages(make_parallel_run("model_parallel", 8, None, model=ModelSpec("mpl", input_shape=[20])))
    with pytest.raises(InputError, match="at most 5 stages"):
        find_stages(make_parallel_run("model_parallel", 8, None, gpus=6))
    run = pipeline_run("model_parallel", 8, 0.1)
    run.ranks[1].stages[0].last = "elsewhere"
    with pytest.raises(InputError, match="from relu_2 to elsewhere, which mlp lacks"):
        find_stages(run)
    run.spec["model"] = {"name": 3}
    with pytest.raises(InputError, match="lacks the model"):
        find_stages(run)
