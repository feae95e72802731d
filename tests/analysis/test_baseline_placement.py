"""Which row a run on other devices, with other cores or variables, is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalebench.analysis.baselines import Baselines
from scalebench.analysis.load import frame_of_results
from scalebench.core.result import Result
from scalebench.core.spec import HardwareSpec
from tests.builders.runs import record


def placed(strategy: str, ids: list[int], block_s: float = 0.1, **changes: Any) -> Result:
    made = HardwareSpec("cpu", devices="cpu", gpus_per_node=2, device_ids=ids, **changes)
    run_id = f"{strategy} {ids} {changes}"
    return record(strategy, gpus=max(1, len(ids)), block_s=block_s, run_id=run_id, hardware=made)


def test_each_device_alone_is_compared_with_the_first() -> None:
    rows = [placed("bare_torch", [0], 0.1), placed("bare_torch", [1], 0.125), placed("bare_torch", [2], 0.08)]
    found = frame_of_results(rows, [Path("x")] * 3)
    assert [round(value, 3) for value in found["speedup_bare"]] == [1.0, 0.8, 1.25]
    assert list(found["speedup_self"]) == [1.0, 1.0, 1.0]
    assert found["overhead_share"].isna().all()  # a bare strategy has none
    assert list(found["device_ids"]) == ["0", "1", "2"]


def test_without_the_first_device_the_lowest_number_is_taken() -> None:
    rows = [placed("bare_torch", [3]), placed("bare_torch", [1])]
    assert all(Baselines.among(rows).find_bare(row) is rows[1] for row in rows)


def test_a_strategy_that_is_its_own_baseline_is_compared_so_too() -> None:
    rows = [
        record(
            "simulated", run_id=f"simulated {ids}", baseline="simulated", hardware=HardwareSpec("cpu", device_ids=ids)
        )
        for ids in ([0], [1])
    ]
    for row in rows:
        row.scale.framework = "none"
    assert [Baselines.among(rows).find_bare(row) for row in rows] == [rows[0], rows[0]]
    assert [Baselines.among(rows).find_self(row) for row in rows] == rows


def test_a_pair_is_compared_with_its_own_first_device_if_that_was_measured() -> None:
    near, far = placed("bare_torch", [0]), placed("bare_torch", [4])
    pair = placed("ddp", [4, 5])
    assert Baselines.among([near, pair]).find_bare(pair) is near
    assert Baselines.among([near, far, pair]).find_bare(pair) is far
    own = [placed("ddp", [0]), placed("ddp", [4])]
    assert Baselines.among([*own, pair]).find_self(pair) is own[1]
    assert Baselines.among([own[0], pair]).find_self(pair) is own[0]


def test_binding_and_variables_are_like_the_devices() -> None:
    usual, far = placed("bare_torch", []), placed("bare_torch", [], bind="far")
    without = {"NCCL_P2P_DISABLE": "1"}
    pairs = [placed("ddp", [0, 1], bind=bind) for bind in ("numa", "none", "far")]
    found = Baselines.among([far, usual, *pairs])
    assert [found.find_bare(pair) for pair in pairs] == [usual, usual, far]
    assert found.find_bare(far) is usual  # one device alone: how much the far cores cost
    assert found.find_bare(placed("ddp", [0, 1], environment=without)) is usual
    other = placed("bare_torch", [], environment=without)
    assert Baselines.among([usual, other]).find_bare(placed("ddp", [0, 1], environment=without)) is other
    assert Baselines.among([usual, other]).find_bare(placed("ddp", [0, 1])) is usual


def test_records_from_before_there_was_a_choice_are_the_usual_ones() -> None:
    old, pair = placed("bare_torch", []), placed("ddp", [0, 1])
    for key in ("device_ids", "bind", "environment"):
        del old.spec["hardware"][key]
    assert Baselines.among([old, pair]).find_bare(pair) is old
    assert (
        frame_of_results([old], [Path("x")])[["device_ids", "bind", "environment", "transports"]].isna().all(axis=None)
    )


def test_the_frame_says_what_was_chosen_and_what_nccl_made_of_it() -> None:
    row = placed("ddp", [0, 5], bind="far", environment={"NCCL_SHM_DISABLE": "1", "A": "b c"})
    row.sync.transports = {"0-1": "P2P/IPC", "0-2": "NET/Socket/0 + P2P/IPC"}
    cells = frame_of_results([row], [Path("x")]).iloc[0]
    assert list(cells[["device_ids", "bind", "environment", "transports"]]) == [
        *("0 5", "far", "NCCL_SHM_DISABLE=1 A=b c", "NET/Socket/0 + P2P/IPC"),
    ]
