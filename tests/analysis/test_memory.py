"""Memory per device: shares of a reference, sharding costs and rows out of memory, for records with known bytes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.columns import RATE
from scalebench.analysis.memory import MIN_FULL_SHARE as ALL
from scalebench.analysis.memory import ModelMemory, bytes_per_parameter, format_strategy, group_by_model
from tests.builders import sweeps
from tests.builders.runs import simulated_config
from tests.builders.sweeps import (
    FULL_STATE_BYTES,
    PARAMETERS,
    out_of_memory,
    ratio_of_rows,
    run_with_batch_search,
    run_with_memory,
)


def of(*results):
    return group_by_model(sweeps.pool(results).make_frame())


def shares(model):
    return {f"{row['strategy']} {row['gpus']}": model.share(row) for row in model.rows}


def test_state_shares_refer_to_the_bare_baseline():
    (model,) = of(
        run_with_memory("bare_torch", 1, FULL_STATE_BYTES),
        run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES + 2 * FULL_STATE_BYTES // 10),  # say, with buckets of its own
        run_with_memory("zero1", 2, 3 * FULL_STATE_BYTES // 4),
        run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2),
        run_with_memory("horovod_gloo", 2, None),
    )
    assert shares(model) == {
        "bare_torch 1": 1.0, "ddp_gloo 2": 1.2, "zero1 2": 0.75, "fsdp_gloo 2": 0.5, "horovod_gloo 2": None,
    }  # fmt: skip
    assert [row["strategy"] for row in model.rows if model.keeps_less(row)] == ["zero1", "fsdp_gloo"]
    assert [bytes_per_parameter(row) for row in model.rows] == [16.0, 19.2, 12.0, 8.0, None]
    assert format_strategy({"strategy": "ddp", "options": "a=1 b=2"}) == "ddp a=1 b=2"


def test_without_a_baseline_state_shares_refer_to_one_device_and_never_to_several():
    half = run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2)
    (model,) = of(run_with_memory("ddp_gloo", 1, FULL_STATE_BYTES), half)
    assert shares(model) == {"ddp_gloo 1": 1.0, "fsdp_gloo 2": 0.5}
    (model,) = of(run_with_memory("zero1", 2, 3 * FULL_STATE_BYTES // 4), half)
    assert shares(model) == {"zero1 2": None, "fsdp_gloo 2": None}
    train = dataclasses.replace(simulated_config().train, optimizer="sgd")
    assert len(of(half, run_with_memory("ddp_gloo", 4, 4 * PARAMETERS, train=train))) == 2


def test_another_framework_or_model_size_has_another_reference():
    small, keras = run_with_memory("fsdp_gloo", 2, 100), run_with_memory("mirrored", 2, 3 * PARAMETERS)
    small.workload.model_params = 50
    keras.scale.framework = "tensorflow"
    (model,) = of(run_with_memory("bare_torch", 1, FULL_STATE_BYTES), small, keras)
    assert shares(model) == {"bare_torch 1": 1.0, "fsdp_gloo 2": None, "mirrored 2": None}


def test_a_device_without_state_bytes_makes_the_row_null():
    made = run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2)
    made.ranks[1].state_bytes = [None]
    (model,) = of(run_with_memory("bare_torch", 1, FULL_STATE_BYTES), made)
    assert shares(model)["fsdp_gloo 2"] is None and model.rows[1]["state_bytes"] is None


def test_models_without_memory_figures_are_left_out():
    assert of(sweeps.run("ddp_gloo", 2), sweeps.failed_run()) == []
    assert of(out_of_memory("ddp_gloo", 2)) == []  # beside nothing that had room


def test_rows_out_of_memory_are_listed():
    (model,) = of(
        run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2),
        out_of_memory("ddp_gloo", 2),
        sweeps.failed_run("horovod_gloo"),
    )
    assert [row["strategy"] for row in model.out_of_memory] == ["ddp_gloo"]
    assert [[row["strategy"] for row in rows] for rows in model.competing_rows()] == [["fsdp_gloo", "ddp_gloo"]]


def test_the_sharding_cost_compares_the_fastest_of_both_kinds():
    (model,) = of(
        run_with_memory("bare_torch", 1, FULL_STATE_BYTES),
        run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES),  # 0.9 of one device, doubled
        run_with_memory("horovod_gloo", 2, FULL_STATE_BYTES),  # 0.8
        run_with_memory("lightning_ddp_gloo", 2, FULL_STATE_BYTES // 2),  # 0.7
    )
    ((alone,), two) = model.competing_rows()
    assert model.sharding_cost([alone], ratio_of_rows) is None
    assert model.sharding_cost(two[:2], ratio_of_rows) is None
    price = model.sharding_cost(two, ratio_of_rows)
    assert (price.sharded["strategy"], price.full["strategy"]) == ("lightning_ddp_gloo", "ddp_gloo")
    assert price.ratio.value == pytest.approx(0.7 / 0.9, rel=0.01)
    assert price.ratio.limits == (None, None), "one repeat"
    states = {"ddp_gloo": FULL_STATE_BYTES, "lightning_ddp_gloo": FULL_STATE_BYTES // 2}
    repeats = [run_with_memory(*each, repeat=n) for n in range(3) for each in ((k, 2, v) for k, v in states.items())]
    configurations = sweeps.pool([run_with_memory("bare_torch", 1, FULL_STATE_BYTES), *repeats])
    (model,) = group_by_model(configurations.make_frame())
    ratio = model.sharding_cost(model.competing_rows()[1], configurations.estimate_ratio).ratio
    assert ratio.low < 0.7 / 0.9 < ratio.high < 1


def test_a_control_is_no_alternative_to_sharding():
    (model,) = of(
        run_with_memory("bare_torch", 1, FULL_STATE_BYTES),
        run_with_memory("independent_torch", 2, FULL_STATE_BYTES),
        run_with_memory("fsdp_gloo", 2, FULL_STATE_BYTES // 2),
    )
    assert model.rows[1][RATE] and model.sharding_cost(model.competing_rows()[1], ratio_of_rows) is None


def test_searches_for_the_largest_batch_do_not_compete():
    (model,) = of(
        run_with_memory("ddp_gloo", 2, FULL_STATE_BYTES),
        run_with_batch_search("fsdp_gloo", 2, 400, 10**9, FULL_STATE_BYTES // 2),
    )
    assert [[row["strategy"] for row in rows] for rows in model.competing_rows()] == [["ddp_gloo"]]


@given(state=st.integers(1, 10**12), whole=st.integers(1, 10**12))
def test_keeping_less_is_a_share_below_the_minimum_of_full_state(state, whole):
    rows = [
        {
            "run_id": name,
            "baseline_bare_id": "bare",
            "gpus": 2,
            "state_bytes": size,
            "model_params": 1,
            "framework": "t",
        }
        for name, size in (("bare", whole), ("fsdp", state))
    ]
    model = ModelMemory(rows)
    assert model.share(rows[1]) == state / whole and model.keeps_less(rows[1]) == (state / whole < ALL)
    assert not model.keeps_less(rows[0])
