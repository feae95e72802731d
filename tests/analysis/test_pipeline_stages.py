"""The columns of a model in stages, of records whose truth is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import pipeline_stages
from scalebench.analysis.columns import COLUMNS, COUNTS
from scalebench.analysis.rows import figures_of
from scalebench.core.result import RankRecord, Result, StageRecord
from tests.builders.runs import rank, record

STEP_S = 0.01
SECONDS = st.floats(1e-6, 1e3)


def stage(index: int, work_s: float | None, stages: int = 2, replica: int = 0, micro_batches: int = 4) -> StageRecord:
    sent = 4096 if index < stages - 1 else None
    return StageRecord(index, stages, replica, f"dense{index}", f"relu_{index}", 1000, micro_batches, sent, work_s)


def chain(*work: float | None, replica: int = 0, micro_batches: int = 4) -> list[RankRecord]:
    """One process for each stage, whose blocks of two updates take 20 ms."""
    return [
        rank(
            replica * len(work) + index,
            [2 * STEP_S] * 32,
            stages=[stage(index, one, len(work), replica, micro_batches)],
            state_bytes=[1000 * (index + 1)],
        )
        for index, one in enumerate(work)
    ]


def run(*chains: list[RankRecord], **changes: Any) -> Result:
    ranks = [one for members in chains for one in members]
    return record("pipeline_gpipe", gpus=len(ranks), ranks=ranks, **changes)


def test_two_stages_one_behind_the_other() -> None:
    assert pipeline_stages.cells(run(chain(0.006, 0.003)), STEP_S) == {
        "stages": 2,
        "micro_batches": 4,
        "stage_balance": pytest.approx(0.75),
        "bubble_share": pytest.approx(1 - 0.009 / 0.02),
        "bubble_share_expected": pytest.approx(1 / 5),
        "state_bytes": 2000,
    }


def test_one_process_may_hold_all_stages_and_tell_them_in_any_order() -> None:
    apart = run(chain(0.006, 0.003))
    together = run([rank(0, stages=[stage(1, 0.003), stage(0, 0.006)], state_bytes=[1000, 2000])])
    assert pipeline_stages.cells(together, STEP_S) == pipeline_stages.cells(apart, STEP_S)
    assert [one.index for one in pipeline_stages.chains(together)[0]] == [0, 1]


def test_of_a_hybrid_the_mean_over_its_replicas() -> None:
    found = pipeline_stages.cells(run(chain(0.01, 0.005), chain(0.005, 0.005, replica=1)), STEP_S)
    assert found["stage_balance"] == pytest.approx((0.75 + 1) / 2)
    assert found["bubble_share"] == pytest.approx((0.25 + 0.5) / 2)
    assert (found["stages"], found["bubble_share_expected"]) == (2, pytest.approx(1 / 5))


def test_below_0_is_left_as_it_is() -> None:
    assert pipeline_stages.cells(run(chain(0.012, 0.01)), STEP_S)["bubble_share"] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    "ranks",
    [
        chain(0.006, None),
        chain(0.006, 0.003)[:1],
        chain(0.006, 0.003) + chain(0.006, None, replica=1),
        chain(0.006, 0.003) + chain(0.006, 0.003, replica=1)[1:],
    ],
    ids=["one not measured", "one missing", "one replica not measured", "one replica not whole"],
)
def test_what_was_not_measured_of_all_is_null(ranks: list[RankRecord]) -> None:
    found = pipeline_stages.cells(run(ranks), STEP_S)
    assert (found["stage_balance"], found["bubble_share"]) == (None, None)
    assert (found["stages"], found["micro_batches"], found["bubble_share_expected"]) == (2, 4, pytest.approx(0.2))


def test_without_an_update_there_is_no_share_of_it() -> None:
    found = pipeline_stages.cells(run(chain(0.006, 0.003)), None)
    assert found["bubble_share"] is None and found["stage_balance"] == pytest.approx(0.75)


def test_chains_that_are_not_alike_have_no_number_of_stages() -> None:
    found = pipeline_stages.cells(run(chain(0.006, 0.003), chain(0.003, 0.003, 0.003, replica=1)), STEP_S)
    assert (found["stages"], found["micro_batches"], found["bubble_share_expected"]) == (None, 4, None)


def test_the_model_on_every_device_is_no_stage() -> None:
    assert pipeline_stages.cells(record(gpus=2), STEP_S) == dict.fromkeys(pipeline_stages.COLUMNS)


@pytest.mark.parametrize(
    ("states", "largest"),
    [([[5], [7]], 7), ([[5, 7]], 7), ([[5], [None]], None), ([[5], []], None), ([[], []], None), ([[0], [0]], 0)],
)
def test_state_of_the_device_that_has_most(states: list[list[int | None]], largest: int | None) -> None:
    result = record(ranks=[rank(number, state_bytes=state) for number, state in enumerate(states)])
    assert pipeline_stages.cells(result, STEP_S)["state_bytes"] == largest


@pytest.mark.parametrize(
    ("stages", "micro_batches", "share"), [(1, 1, 0), (1, 8, 0), (2, 1, 1 / 2), (4, 1, 3 / 4), (4, 8, 3 / 11)]
)
def test_the_bubble_of_the_papers(stages: int, micro_batches: int, share: float) -> None:
    assert pipeline_stages.bubble_share_expected(stages, micro_batches) == pytest.approx(share)
    over_work = share / (1 - share)
    assert over_work == pytest.approx((stages - 1) / micro_batches), "as Narayanan et al. put it"


def simulated_step_s(work: list[float], micro_batches: int, forward: float) -> float:
    """GPipe: all forwards, then all backwards, each stage in order; `forward` is their share of the work."""

    def phase(each: list[float], ready: list[float]) -> list[float]:
        """Ends of the micro-batches behind the last of the stages; `ready`: when the stages are free."""
        ends = [0.0] * micro_batches
        for duration, free in zip(each, ready, strict=True):
            for number in range(micro_batches):
                free = max(free, ends[number]) + duration
                ends[number] = free
        return ends

    per_batch = [one / micro_batches for one in work]
    forwards_end = phase([forward * one for one in per_batch], [0.0] * len(work))[-1]
    return phase([(1 - forward) * one for one in reversed(per_batch)], [forwards_end] * len(work))[-1]


@given(st.lists(SECONDS, min_size=1, max_size=6), st.integers(1, 12), st.floats(0.1, 0.9))
def test_stages_that_are_unequal_leave_what_the_schedule_leaves(work: list[float], m: int, forward: float) -> None:
    step_s = simulated_step_s(work, m, forward)
    found = pipeline_stages.bubble_share_unequal(work, m)
    assert found == pytest.approx(pipeline_stages.bubble_share(work, step_s), abs=1e-9)
    least = pipeline_stages.bubble_share_expected(len(work), m)
    assert found is not None and found >= least - 1e-9, "equal ones leave the least"


@given(st.integers(1, 16), st.integers(1, 64), SECONDS)
def test_equal_stages_leave_what_the_formula_says(stages: int, micro_batches: int, work_s: float) -> None:
    found = pipeline_stages.bubble_share_unequal([work_s] * stages, micro_batches)
    assert found == pytest.approx(pipeline_stages.bubble_share_expected(stages, micro_batches), abs=1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=8))
def test_balance_is_between_all_in_one_and_even(work: list[float]) -> None:
    found = pipeline_stages.balance(work)
    assert found is not None and 1 / len(work) - 1e-12 <= found <= 1 + 1e-12
    assert pipeline_stages.balance([work[0]] * 3) == pytest.approx(1)


def test_no_work_has_no_balance() -> None:
    assert pipeline_stages.balance([0.0, 0.0]) is None
    assert pipeline_stages.bubble_share_unequal([0.0, 0.0], 4) is None


def test_a_row_has_the_columns_of_them(tmp_path: Path) -> None:
    cells = figures_of(run(chain(0.006, 0.003)), tmp_path).cells
    assert cells["step_s"] == pytest.approx(STEP_S)
    assert cells["bubble_share"] == pytest.approx(0.55)
    assert {name for name in pipeline_stages.COLUMNS if isinstance(cells[name], int)} == {*COUNTS} & {
        *pipeline_stages.COLUMNS
    }
    assert set(pipeline_stages.COLUMNS) <= set(COLUMNS) and not math.isnan(cells["stage_balance"])
