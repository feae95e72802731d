"""The columns of a model in stages, of records whose truth is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import pipeline_stages
from scalebench.core.result import StageRecord
from tests.builders.runs import rank, record

STEP_S = 0.01
SECONDS = st.floats(1e-6, 1e3)


def stage(index, work_s, stages=2, replica=0, micro_batches=4):
    sent = 4096 if index < stages - 1 else None
    return StageRecord(index, stages, replica, f"dense{index}", f"relu_{index}", 1000, micro_batches, sent, work_s)


def chain(*work, replica=0, micro_batches=4):
    """One process for each stage, whose blocks of two steps take 20 ms."""
    return [
        rank(
            replica * len(work) + index,
            [2 * STEP_S] * 32,
            stages=[stage(index, one, len(work), replica, micro_batches)],
            state_bytes=[1000 * (index + 1)],
        )
        for index, one in enumerate(work)
    ]


def run(*chains, **changes):
    ranks = [one for members in chains for one in members]
    return record("pipeline_gpipe", gpus=len(ranks), ranks=ranks, **changes)


def test_two_stages_without_overlap():
    assert pipeline_stages.stage_cells(run(chain(0.006, 0.003)), STEP_S) == {
        "stages": 2,
        "micro_batches": 4,
        "stage_balance": pytest.approx(0.75),
        "bubble_share": pytest.approx(1 - 0.009 / 0.02),
        "bubble_share_expected": pytest.approx(1 / 5),
        "state_bytes": 2000,
    }


def test_one_process_may_report_all_stages_in_any_order():
    apart = run(chain(0.006, 0.003))
    together = run([rank(0, stages=[stage(1, 0.003), stage(0, 0.006)], state_bytes=[1000, 2000])])
    assert pipeline_stages.stage_cells(together, STEP_S) == pipeline_stages.stage_cells(apart, STEP_S)
    assert [one.index for one in pipeline_stages.group_stages(together)[0]] == [0, 1]


def test_a_hybrid_has_the_mean_over_its_replicas():
    pipelines = pipeline_stages.stage_cells(run(chain(0.01, 0.005), chain(0.005, 0.005, replica=1)), STEP_S)
    assert pipelines["stage_balance"] == pytest.approx((0.75 + 1) / 2)
    assert pipelines["bubble_share"] == pytest.approx((0.25 + 0.5) / 2)
    assert (pipelines["stages"], pipelines["bubble_share_expected"]) == (2, pytest.approx(1 / 5))


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
def test_figures_that_a_stage_lacks_are_null(ranks):
    pipelines = pipeline_stages.stage_cells(run(ranks), STEP_S)
    assert (pipelines["stage_balance"], pipelines["bubble_share"]) == (None, None)
    assert (pipelines["stages"], pipelines["micro_batches"], pipelines["bubble_share_expected"]) == (
        2,
        4,
        pytest.approx(0.2),
    )


def test_without_a_step_time_there_is_no_bubble():
    pipelines = pipeline_stages.stage_cells(run(chain(0.006, 0.003)), None)
    assert pipelines["bubble_share"] is None and pipelines["stage_balance"] == pytest.approx(0.75)


def test_unequal_pipelines_have_no_number_of_stages():
    pipelines = pipeline_stages.stage_cells(run(chain(0.006, 0.003), chain(0.003, 0.003, 0.003, replica=1)), STEP_S)
    assert (pipelines["stages"], pipelines["micro_batches"], pipelines["bubble_share_expected"]) == (None, 4, None)


def test_a_full_model_on_every_device_has_no_stages():
    assert pipeline_stages.stage_cells(record(gpus=2), STEP_S) == dict.fromkeys(pipeline_stages.STAGE_COLUMNS)


@pytest.mark.parametrize(
    ("states", "largest"),
    [([[5], [7]], 7), ([[5, 7]], 7), ([[5], [None]], None), ([[5], []], None), ([[], []], None), ([[0], [0]], 0)],
)
def test_state_bytes_are_those_of_the_fullest_device(states, largest):
    result = record(ranks=[rank(number, state_bytes=state) for number, state in enumerate(states)])
    assert pipeline_stages.stage_cells(result, STEP_S)["state_bytes"] == largest


@pytest.mark.parametrize(
    ("stages", "micro_batches", "share"), [(1, 1, 0), (1, 8, 0), (2, 1, 1 / 2), (4, 1, 3 / 4), (4, 8, 3 / 11)]
)
def test_the_expected_bubble_is_that_of_the_papers(stages, micro_batches, share):
    assert pipeline_stages.expected_bubble_share(stages, micro_batches) == pytest.approx(share)
    over_work = share / (1 - share)
    assert over_work == pytest.approx((stages - 1) / micro_batches), "as Narayanan et al. put it"


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
    pipelines = pipeline_stages.expected_bubble_share_of_unequal_stages(work, m)
    assert pipelines == pytest.approx(pipeline_stages.bubble_share(work, step_s), abs=1e-9)
    least = pipeline_stages.expected_bubble_share(len(work), m)
    assert pipelines is not None and pipelines >= least - 1e-9, "equal ones leave the least"


@given(st.integers(1, 16), st.integers(1, 64), SECONDS)
def test_the_bubble_of_equal_stages_is_that_of_the_formula(stages, micro_batches, work_s):
    pipelines = pipeline_stages.expected_bubble_share_of_unequal_stages([work_s] * stages, micro_batches)
    assert pipelines == pytest.approx(pipeline_stages.expected_bubble_share(stages, micro_batches), abs=1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=8))
def test_balance_is_between_one_stage_and_even(work):
    pipelines = pipeline_stages.stage_balance(work)
    assert pipelines is not None and 1 / len(work) - 1e-12 <= pipelines <= 1 + 1e-12
    assert pipeline_stages.stage_balance([work[0]] * 3) == pytest.approx(1)


def test_no_work_has_no_balance():
    assert pipeline_stages.stage_balance([0.0, 0.0]) is None
    assert pipeline_stages.expected_bubble_share_of_unequal_stages([0.0, 0.0], 4) is None
