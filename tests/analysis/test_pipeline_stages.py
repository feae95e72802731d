"""The columns and the pages of a model in stages, of records whose truth is known."""

import pytest

from scalebench.analysis import step_breakdown
from scalebench.report.sections import stages as section
from tests.builders.parallelism_runs import STEP_S, chain, stage, staged_run
from tests.builders.runs import rank, record
from tests.report.section_blocks import build_blocks


def cells_of(*chains, step_s=STEP_S):
    return step_breakdown.stage_cells(staged_run(*chains), step_s)


def test_two_stages_without_overlap():
    cells = cells_of(chain(0.006, 0.003))
    assert cells == {
        "stages": 2, "micro_batches": 4, "stage_balance": pytest.approx(0.75), "state_bytes": 2000,
        "bubble_share": pytest.approx(1 - 0.009 / 0.02), "bubble_share_expected": pytest.approx(1 / 5),
    }  # fmt: skip
    together = staged_run([rank(0, stages=[stage(1, 0.003), stage(0, 0.006)], state_bytes=[1000, 2000])])
    assert step_breakdown.stage_cells(together, STEP_S) == cells, "one process may report all in any order"
    assert [one.index for one in step_breakdown.group_stages(together)[0]] == [0, 1]
    assert cells_of(chain(0.006, 0.003), step_s=None) == {**cells, "bubble_share": None}
    assert set(step_breakdown.stage_cells(record(gpus=2), STEP_S).values()) == {None}


def test_a_hybrid_has_the_mean_over_its_replicas():
    cells = cells_of(chain(0.01, 0.005), chain(0.005, 0.005, replica=1))
    assert cells["stage_balance"] == pytest.approx((0.75 + 1) / 2)
    assert cells["bubble_share"] == pytest.approx((0.25 + 0.5) / 2)
    assert (cells["stages"], cells["bubble_share_expected"]) == (2, pytest.approx(1 / 5))
    unequal = cells_of(chain(0.006, 0.003), chain(0.003, 0.003, 0.003, replica=1))
    assert (unequal["stages"], unequal["micro_batches"], unequal["bubble_share_expected"]) == (None, 4, None)


@pytest.mark.parametrize("ranks", [
    chain(0.006, None), chain(0.006, 0.003)[:1], chain(0.006, 0.003) + chain(0.006, None, replica=1),
    chain(0.006, 0.003) + chain(0.006, 0.003, replica=1)[1:],
], ids=["one not measured", "one missing", "one replica not measured", "one replica not whole"])  # fmt: skip
def test_figures_that_a_stage_lacks_are_null(ranks):
    cells = cells_of(ranks)
    assert [cells[name] for name in ("stage_balance", "bubble_share", "stages", "micro_batches")] == [None, None, 2, 4]
    assert cells["bubble_share_expected"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("states", "largest"),
    [([[5], [7]], 7), ([[5, 7]], 7), ([[5], [None]], None), ([[5], []], None), ([[], []], None), ([[0], [0]], 0)],
)
def test_state_bytes_are_those_of_the_fullest_device(states, largest):
    result = record(ranks=[rank(number, state_bytes=state) for number, state in enumerate(states)])
    assert step_breakdown.stage_cells(result, STEP_S)["state_bytes"] == largest


def test_there_is_no_section_without_stages(tmp_path):
    for name, result in {"a": record(), "b": staged_run(chain(0.006, 0.003), status="failed")}.items():
        assert build_blocks(section.list_stages, tmp_path / name, [result]) == []


def test_the_measured_bubble_stands_beside_the_expected_one():
    measured = "of the devices' time is spent in no stage's forward or backward"
    expected = "20.0 % is expected of 4 micro-batches through 2 equal stages"
    for chains, text in (
        ([chain(0.006, 0.006)], f"bubble: 40.0 % {measured}; {expected}"),
        ([chain(0.012, 0.01)],
         f"bubble: -10.0 % {measured}; below 0, since the isolated stages took longer than in training; {expected}"),
        ([chain(0.006, 0.003), chain(0.003, 0.003, 0.003, replica=1)], f"bubble: 62.5 % {measured}"),  # unequal ones
        ([chain(0.01, micro_batches=1)],
         f"bubble: 0.0 % {measured}; 0.0 % is expected of 1 micro-batch through 1 equal stage"),
    ):  # fmt: skip
        assert section.describe_bubble(staged_run(*chains)) == text
    assert step_breakdown.stage_balance([0.0, 0.0]) is None
