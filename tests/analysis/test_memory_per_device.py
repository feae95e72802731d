"""What devices keep, against bytes that were written down here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.memory import MIN_FULL_SHARE as ALL
from scalebench.analysis.memory import ModelMemory, bytes_per_parameter, format_strategy, group_by_model
from scalebench.analysis.repeats import pool_results
from scalebench.core.result import Result
from tests.builders import sweeps
from tests.builders.runs import simulated_config
from tests.builders.sweeps import PARAMETERS, WHOLE, kept, out_of_memory, searched


def of(*results: Result) -> list[ModelMemory]:
    return group_by_model(pool_results(results, [Path(str(number)) for number in range(len(results))]))


def shares(one: ModelMemory) -> dict[str, float | None]:
    return {f"{row['strategy']} {row['gpus']}": one.share(row) for row in one.rows}


def test_shares_are_of_what_the_bare_baseline_keeps() -> None:
    (one,) = of(
        kept("bare_torch", 1, WHOLE),
        kept("ddp_gloo", 2, WHOLE + 2 * WHOLE // 10),  # say, with buckets of its own
        kept("zero1", 2, 3 * WHOLE // 4),
        kept("fsdp_gloo", 2, WHOLE // 2),
        kept("horovod_gloo", 2, None),
    )
    assert shares(one) == {
        "bare_torch 1": 1.0, "ddp_gloo 2": 1.2, "zero1 2": 0.75, "fsdp_gloo 2": 0.5, "horovod_gloo 2": None,
    }  # fmt: skip
    assert [row["strategy"] for row in one.rows if one.keeps_less(row)] == ["zero1", "fsdp_gloo"]
    assert [bytes_per_parameter(row) for row in one.rows] == [16.0, 19.2, 12.0, 8.0, None]


def test_without_a_baseline_of_what_one_device_keeps() -> None:
    (one,) = of(kept("ddp_gloo", 1, WHOLE), kept("fsdp_gloo", 2, WHOLE // 2))
    assert shares(one) == {"ddp_gloo 1": 1.0, "fsdp_gloo 2": 0.5}


def test_what_one_of_several_devices_keeps_is_not_taken_for_all() -> None:
    (one,) = of(kept("zero1", 2, 3 * WHOLE // 4), kept("fsdp_gloo", 2, WHOLE // 2))
    assert shares(one) == {"zero1 2": None, "fsdp_gloo 2": None}


def test_another_framework_or_size_is_another_measure() -> None:
    small, keras = kept("fsdp_gloo", 2, 100), kept("mirrored", 2, 3 * PARAMETERS)
    small.workload.model_params = 50
    keras.scale.framework = "tensorflow"
    (one,) = of(kept("bare_torch", 1, WHOLE), small, keras)
    assert shares(one) == {"bare_torch 1": 1.0, "fsdp_gloo 2": None, "mirrored 2": None}


def test_a_device_that_cannot_tell_makes_the_row_null() -> None:
    made = kept("fsdp_gloo", 2, WHOLE // 2)
    made.ranks[1].state_bytes = [None]
    (one,) = of(kept("bare_torch", 1, WHOLE), made)
    assert shares(one)["fsdp_gloo 2"] is None and one.rows[1]["state_bytes"] is None


def test_models_hardware_and_optimizers_stand_apart() -> None:
    train = dataclasses.replace(simulated_config().train, optimizer="sgd")
    assert len(of(kept("ddp_gloo", 2, WHOLE), kept("ddp_gloo", 4, 4 * PARAMETERS, train=train))) == 2


def test_nothing_known_is_nothing_told() -> None:
    assert of(sweeps.run("ddp_gloo", 2), sweeps.failed()) == []
    assert of(out_of_memory("ddp_gloo", 2)) == []  # beside nothing that had room


def test_who_was_out_of_memory() -> None:
    (one,) = of(kept("fsdp_gloo", 2, WHOLE // 2), out_of_memory("ddp_gloo", 2), sweeps.failed("horovod_gloo"))
    assert [row["strategy"] for row in one.out_of_memory] == ["ddp_gloo"]
    assert [[row["strategy"] for row in rows] for rows in one.competing_rows()] == [["fsdp_gloo", "ddp_gloo"]]


def test_the_price_is_of_the_fastest_on_either_side() -> None:
    (one,) = of(
        kept("bare_torch", 1, WHOLE),
        kept("ddp_gloo", 2, WHOLE),  # 0.9 of one device, doubled
        kept("horovod_gloo", 2, WHOLE),  # 0.8
        kept("lightning_ddp_gloo", 2, WHOLE // 2),  # 0.7
    )
    ((alone,), two) = one.competing_rows()
    assert one.sharding_cost([alone]) is None and one.sharding_cost(two[:2]) is None
    price = one.sharding_cost(two)
    assert price is not None and price.interval is not None
    assert (price.sharded["strategy"], price.full["strategy"]) == ("lightning_ddp_gloo", "ddp_gloo")
    assert price.ratio == pytest.approx(0.7 / 0.9, rel=0.01)
    assert price.interval.low < price.ratio < price.interval.high


def test_a_search_for_the_largest_batch_competes_with_nobody() -> None:
    (one,) = of(kept("ddp_gloo", 2, WHOLE), searched("fsdp_gloo", 2, 400, 10**9, WHOLE // 2))
    assert [[row["strategy"] for row in rows] for rows in one.competing_rows()] == [["ddp_gloo"]]


def test_names_tell_the_options() -> None:
    assert format_strategy({"strategy": "ddp", "options": None}) == "ddp"
    assert format_strategy({"strategy": "ddp", "options": "a=1 b=2"}) == "ddp a=1 b=2"


@given(state=st.integers(1, 10**12), whole=st.integers(1, 10**12))
def test_keeping_less_is_a_share_below_almost_all(state: int, whole: int) -> None:
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
    one = ModelMemory(rows)
    assert one.share(rows[1]) == state / whole and one.keeps_less(rows[1]) == (state / whole < ALL)
    assert not one.keeps_less(rows[0])
