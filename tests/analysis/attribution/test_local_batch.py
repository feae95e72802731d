"""One-device runs at the local batch of a strong run: which ones are alike but for it."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.analysis.attribution.local_batch import LocalBaselines
from scalebench.core.result import Result
from tests.builders.attribution_runs import alone, strong, together


def names(result: Result, *others: Result) -> tuple[str | None, str | None]:
    local = LocalBaselines([result, *others])
    return tuple(found and found.run_id for found in (local.bare_of(result), local.self_of(result)))  # type: ignore[return-value]


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_told_either_way(scaling: str) -> None:
    bare, own = (alone(name, 0.01, 10, scaling=scaling) for name in ("bare_torch", "ddp"))
    found = names(together("strong"), bare, own)
    assert found == (bare.run_id, own.run_id)


def test_the_record_itself_comes_back() -> None:
    result, full, bare, own = strong()
    local = LocalBaselines([result, full, bare, own])
    assert local.bare_of(result) is bare and local.self_of(result) is own


def test_another_batch_is_none() -> None:
    result, full, _, _ = strong()
    assert names(result, full, alone("bare_torch", 0.01, 5), alone("ddp", 0.01, 20)) == (None, None)


def test_another_workload_or_a_failed_run_is_none() -> None:
    result = together("strong")
    other = alone("bare_torch", 0.01, seed=1)
    failed = dataclasses.replace(alone("ddp", 0.01), status="failed")
    assert names(result, other, failed) == (None, None)
    bare = alone("bare_torch", 0.01)
    bare.spec["train"] = {**bare.spec["train"], "precision": "bfloat16"}
    assert names(result, bare) == (None, None)


def test_a_batch_that_is_no_whole_number_has_none() -> None:
    result = together("strong")
    result = dataclasses.replace(result, scale=dataclasses.replace(result.scale, global_batch=21))
    assert names(result, alone("bare_torch", 0.01), alone("ddp", 0.01)) == (None, None)


def test_of_several_that_of_the_same_repeat() -> None:
    result = together("strong", repeat=1)
    first, second = (alone("bare_torch", 0.01, repeat=repeat) for repeat in (0, 1))
    assert names(result, first, second)[0] == second.run_id
