"""Runs of a user's own program: which blocks count, and what is said of the others."""

import dataclasses

import pytest

from scalebench.analysis import user_program
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import summarize_run
from scalebench.core.result import ScriptRecord
from tests.builders.runs import record

SCRIPT = {"path": "train.py", "args": {"lr": 0.1}}


def of_program(pauses=(), hooks_s=1e-5, blocks=20, **changes):
    """A run of blocks of 10 ms on two ranks, but for those in which rank 1 saved, which took 60 ms."""
    result = record(**changes)
    scale = dataclasses.replace(result.scale, strategy="script", baseline_bare=None)
    seconds = [0.06 if number in pauses else 0.01 for number in range(blocks)]
    ranks = [
        dataclasses.replace(
            result.ranks[0], rank=rank, block_steps=1, block_s=seconds, block_samples=[8] * blocks,
            block_losses=[None] * blocks, block_started_at_s=[], block_rounds=[], block_data_s=[0.001] * blocks,
            block_pauses=["saving" if rank and number in pauses else "" for number in range(blocks)],
            script=ScriptRecord(steps=20, batches=20, draws=20, hooks_s=hooks_s),
        )
        for rank in range(2)
    ]  # fmt: skip
    return dataclasses.replace(result, scale=scale, ranks=ranks, spec={**result.spec, "script": SCRIPT})


def test_blocks_in_which_any_rank_paused_are_in_no_rate(tmp_path):
    cells = summarize_run(of_program({4, 19}), tmp_path).cells
    assert cells["throughput_samples_per_s"] == pytest.approx(1600)
    assert cells["pause_share"] == pytest.approx(2 * 0.05 / (18 * 0.01 + 2 * 0.06))
    assert cells["data_wait_share"] == pytest.approx(0.1)
    assert cells["options"] == "lr=0.1"
    assert user_program.name_pauses(of_program({4})) == ["saving"]
    for rank in (result := of_program()).ranks:
        rank.script.draws = 0
    assert user_program.data_wait_share(result) is None


@pytest.mark.parametrize(("blocks", "paused", "seconds", "flagged"), [
    (20, 15, 15 * 0.06 + 5 * 0.01, True),
    (12, 5, 12 * 0.01, False),  # 7 blocks are few, but most: with the others one end of an epoch would make the rate
    (12, 6, 6 * 0.06 + 6 * 0.01, True),
])  # fmt: skip
def test_all_blocks_count_where_most_hold_a_pause(blocks, paused, seconds, flagged, tmp_path):
    cells = summarize_run(of_program(set(range(paused)), blocks=blocks), tmp_path).cells
    assert cells["throughput_samples_per_s"] == pytest.approx(16 * blocks / seconds)
    assert (cells["pause_share"] is None, "pauses_count" in (cells["flags"] or "")) == (flagged, flagged)


def test_hooks_that_take_more_than_a_hundredth_of_a_step_are_a_flag(tmp_path):
    flags = [(summarize_run(of_program(hooks_s=hooks_s), tmp_path).cells["flags"] or "") for hooks_s in (9e-5, 2e-4)]
    assert ["hooks_cost" in each for each in flags] == [False, True]


@pytest.mark.parametrize(("samples", "pauses", "flags"), [
    ([8] * 20, (), ""),
    ([8, 16, 32, 64] * 5, (), "batches_vary"),
    ([8] * 9 + [2] + [8] * 9 + [2], (9, 19), ""),  # the last batches of epochs
    ([0] * 20, (), "samples_unknown"),  # which no longer measurement tells
])  # fmt: skip
def test_samples_of_a_step_that_vary_or_are_unknown_are_a_flag(samples, pauses, flags, tmp_path):
    result = of_program(pauses)
    ranks = [dataclasses.replace(rank, block_samples=samples) for rank in result.ranks]
    scale = dataclasses.replace(result.scale, global_batch=16 if any(samples) else None)
    cells = summarize_run(dataclasses.replace(result, ranks=ranks, scale=scale), tmp_path).cells
    assert (cells["flags"] or "") == flags


@pytest.mark.parametrize(
    ("scaling", "batches", "is_other"),
    [("weak", (8, 8), False), ("weak", (8, 4), True), ("strong", (8, 4), False), ("strong", (8, 8), True)],
)
def test_samples_that_do_not_scale_as_declared_are_a_flag(scaling, batches, is_other, tmp_path):
    runs = []
    for gpus, batch in zip((1, 2), batches, strict=True):
        result = of_program()
        batches = {"batch_per_device": batch, "global_batch": batch * gpus}
        scale = dataclasses.replace(result.scale, gpus=gpus, scaling=scaling, **batches)
        runs.append(summarize_run(dataclasses.replace(result, scale=scale, run_id=f"run{gpus}"), tmp_path / str(gpus)))
    flags = [(row["flags"] or "").split() for row in Configurations(runs).rows]
    assert ["other_scaling" in each for each in flags] == [False, is_other]
