"""The columns and the pages of a model in stages, of records whose truth is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import step_breakdown
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import stages as section
from tests.builders.parallelism_runs import STEP_S, chain, stage, staged_run
from tests.builders.runs import rank, record
from tests.report.section_blocks import build_blocks, get_block, select_blocks

SECONDS = st.floats(1e-6, 1e3)


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


def simulated_step_s(work, micro_batches, forward):
    """GPipe: all forwards, then all backwards, each stage in order; `forward` is their share of the work."""

    def phase(each, ready):
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
def test_the_bubble_of_unequal_stages_is_that_of_the_schedule(work, m, forward):
    step_s = simulated_step_s(work, m, forward)
    share = step_breakdown.expected_bubble_share_of_unequal_stages(work, m)
    assert share == pytest.approx(step_breakdown.bubble_share(work, step_s), abs=1e-9)
    least = (len(work) - 1) / (m + len(work) - 1)
    assert share is not None and share >= least - 1e-9, "equal ones leave the least"
    equal = step_breakdown.expected_bubble_share_of_unequal_stages(work[:1] * len(work), m)
    assert equal == pytest.approx(least, abs=1e-9)
    assert 1 / len(work) - 1e-12 <= step_breakdown.stage_balance(work) <= 1 + 1e-12
    assert step_breakdown.stage_balance([0.0, 0.0]) is None
    assert step_breakdown.expected_bubble_share_of_unequal_stages([0.0, 0.0], 4) is None


def test_the_section_shows_some_of_many_runs_and_nothing_without_stages(tmp_path, monkeypatch):
    monkeypatch.setattr(section, "MAX_STAGED_RUNS", 1)
    results = [staged_run(chain(0.006, 0.003), run_id="a"), staged_run(chain(0.006, 0.003, 0.003), run_id="b")]
    made = build_blocks(section.list_stages, tmp_path / "many", results)
    assert len(get_block(made, Table).rows) == 2
    assert select_blocks(made, Paragraph)[-1].text == "1 of 2 runs whose model was cut into stages are shown."
    for name, result in {"a": record(), "b": staged_run(chain(0.006, 0.003), status="failed")}.items():
        assert build_blocks(section.list_stages, tmp_path / name, [result]) == []


EXPECTED = "20.0 % is expected of 4 micro-batches through 2 equal stages"


def test_the_measured_bubble_stands_beside_the_expected_one():
    measured = "of the devices' time is spent in no stage's forward or backward"
    for chains, begin, end in (
        ([chain(0.006, 0.006)], f"bubble: 40.0 % {measured}", f"; {EXPECTED}, 20.0 % of stages as unequal as these"),
        ([chain(0.0, 0.006)], "", f"{EXPECTED}, 50.0 % of stages as unequal as these"),
        ([chain(0.012, 0.01)],
         f"bubble: -10.0 % {measured}; below 0, since the isolated stages took longer than in training; 20.0 %", ""),
        ([chain(0.006, 0.003), chain(0.003, 0.003, 0.003, replica=1)], "", measured),  # unequal replicas
    ):  # fmt: skip
        text = section.describe_bubble(staged_run(*chains))
        assert text.startswith(begin) and text.endswith(end)
    single = section.describe_bubble(staged_run(chain(0.01, micro_batches=1)))
    assert "of 1 micro-batch through 1 equal stage," in single
