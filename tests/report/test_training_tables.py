"""Tables of trainings, and the losses of a run."""

from pathlib import Path

import pandas as pd
import pytest

from scalebench.analysis.load import frame_of_results
from scalebench.core.result import CurvePoint, Quality
from scalebench.report.tables import write_tables
from scalebench.report.training_tables import compute_losses, select_figure_columns
from tests.builders.runs import rank, record
from tests.builders.sweeps import run, training_run, write_results
from tests.report.section_blocks import show_table

BARE = {"strategy": "bare_torch", "gpus": 1, "epoch_s": 4.0}
ENDS = {"epochs": "3", "training": "6.00 s", "mse": "0.1", "gap": "0.05"}


def make_frame(*results):
    return frame_of_results(results, [Path("x")] * len(results))


def row_cells(results, row=0):
    frame = make_frame(*results)
    return {head: of(frame.to_dict("records")[row]) for head, of in select_figure_columns(frame).items()}


def test_metric_gap_time_and_speedup():
    trainings = [training_run(**BARE), training_run(epoch_s=2.0)]
    cells = row_cells(trainings, 1)
    assert cells.pop("samples/s over bare").startswith("1.7")  # of which time to target knows nothing
    assert cells == {**ENDS, "time to target": "6.00 s", "to target over bare": "2.00"}
    other = training_run("ddp_gloo", 1, epoch_s=5.0)
    assert row_cells([*trainings, other], 1)["to target over self"] == "2.50"


def test_a_target_that_was_not_reached_is_shown():
    trainings = [training_run(values=[0.9]), training_run("mirrored", target=None), training_run("x", status="failed")]
    assert row_cells(trainings, 0)["time to target"] == "not reached"
    assert row_cells(trainings, 1)["time to target"] == "" == row_cells(trainings, 2)["time to target"]
    assert "to target over bare" not in row_cells(trainings)
    assert row_cells([training_run(target=None)]) == ENDS
    both = [training_run(target=None), training_run("mirrored", target=None, metric="accuracy")]
    assert [row_cells(both, row)["metric"] for row in (0, 1)] == ["mse 0.1", "accuracy 0.1"]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"learning_rate_rule": "sqrt", "base_batch": 10}, "learning_rate_rule"),
        ({"learning_rate": 0.5}, "learning_rate"),
        ({"weight_decay": 0.5}, "weight_decay"),
        ({"schedule": "cosine"}, "schedule"),
        ({"accumulate": 2}, "accumulate"),
        ({"seed": 1}, "seed"),
    ],
)
def test_settings_that_differ_are_shown(settings, name):
    changes = {"seed": 1} if name == "seed" else {"settings": settings}
    two = training_run(), training_run(run_id="other", **changes)
    assert f"{name}=" in show_table(make_frame(*two))
    assert f"{name}=" not in show_table(make_frame(training_run(), training_run("mirrored")))


def test_files_of_a_sweep_have_a_row_a_training(tmp_path):
    write_results(tmp_path, [training_run(seed=seed) for seed in range(3)])
    write_tables(tmp_path)
    csv = pd.read_csv(tmp_path / "trainings.csv")
    assert list(csv["reached"]) == [3] == list(pd.read_parquet(tmp_path / "trainings.parquet")["reached"])
    write_results(tmp_path / "measured", [run("ddp_gloo", 2)])
    write_tables(tmp_path / "measured")
    assert not (tmp_path / "measured" / "trainings.csv").exists()


def two_ranks(**changes):
    first = {
        "warmup_block_steps": 3,
        "warmup_block_s": [0.5, 0.2],
        "warmup_losses": [9.0, None],
        "block_losses": [2.0, 1.0],
    }
    second = {**first, "warmup_losses": [5.0, None], "block_losses": [4.0, None], **changes}
    return [rank(0, [0.1, 0.2], [30, 30], **first), rank(1, [0.3, 0.1], [10, 10], **second)]


def test_blocks_of_all_ranks_weighted_by_samples():
    losses = compute_losses(record("ddp", 2, ranks=two_ranks()))
    assert losses.steps == [3, 6, 8, 10]
    assert losses.samples == [60, 120, 160, 200]  # 20 a step over both, then what each block had
    assert losses.seconds == pytest.approx([0.5, 0.7, 1.0, 1.2])
    assert losses.losses == [pytest.approx((9 * 30 + 5 * 10) / 40), None, pytest.approx((2 * 30 + 4 * 10) / 40), 1.0]
    assert losses.make_points(losses.steps) == [(3, 8.0), (8, 2.5), (10, 1.0)]


def test_older_records_have_no_losses_of_the_warm_up_and_yet_its_time():
    losses = compute_losses(record("ddp", 2, ranks=two_ranks(warmup_losses=[])))
    assert losses.losses[0] == 9.0  # of the rank that has one
    ranks = [rank(0, [0.1], [30], warmup_block_s=[0.5, 0.2], warmup_block_steps=3)]
    assert compute_losses(record("ddp", 1, ranks=ranks)).losses == [None, None, 0.5]
    assert compute_losses(record("ddp", 1, ranks=ranks)).seconds == pytest.approx([0.5, 0.7, 0.8])
    ranks = [rank(0, [0.1], [30], warmup_block_s=[0.5])]  # its number of steps is not recorded
    assert compute_losses(record("ddp", 1, ranks=ranks)).steps == [2]


def test_blocks_that_a_rank_did_not_finish_and_ranks_that_measured_nothing():
    ranks = two_ranks()
    ranks[1].block_s, ranks[1].block_samples = [0.3], [10]
    assert compute_losses(record("ddp", 2, ranks=ranks)).steps == [3, 6, 8]
    assert compute_losses(record("ddp", 2, ranks=[])).steps == []
    assert compute_losses(record("ddp", 1, ranks=[rank(0)])).steps == []


def test_blocks_that_a_point_cut_short_are_stepped_over():
    """Points after 7 and 14 steps: blocks of 3 fit once and twice, and what is left of each epoch is in no series.
    The first step, which compiles, is in no seconds; the last batch of an epoch is a smaller one."""
    points = [CurvePoint(step, 0.0, samples, s, 1e-3, 1.0, 1) for step, samples, s in ((7, 60, 1.6), (14, 120, 3.7))]
    warmup = {"warmup_block_steps": 1, "warmup_block_s": [9.0, 0.2, 0.2], "warmup_losses": [5.0, 4.0, 3.0]}
    blocks = {"block_steps": 3, "block_losses": [2.0, 1.0, 0.5]}
    single_rank = rank(0, [0.6, 0.8, 0.9], [30, 30, 30], **warmup, **blocks)
    losses = compute_losses(record("ddp", 1, ranks=[single_rank], quality=Quality(curve=points)))
    assert losses.steps == [1, 2, 3, 6, 7, 10, 13, 14]
    assert losses.samples == [10, 20, 30, 60, 60, 90, 120, 120]
    assert losses.seconds == pytest.approx([0.0, 0.2, 0.4, 1.0, 1.6, 2.4, 3.3, 3.7])
    assert losses.losses == [5.0, 4.0, 3.0, 2.0, None, 1.0, 0.5, None]


def test_points_between_which_no_block_fits():
    points = [CurvePoint(step, 0.0, 10 * step, 0.1 * step, 1e-3, 1.0, 1) for step in (1, 3, 5, 8)]
    warmup = {"warmup_block_steps": 1, "warmup_block_s": [9.0], "warmup_losses": [5.0]}
    single_rank = rank(0, [0.6], [30], block_steps=3, block_losses=[2.0], **warmup)
    losses = compute_losses(record("ddp", 1, ranks=[single_rank], quality=Quality(curve=points)))
    assert losses.steps == [1, 3, 5, 8] and losses.samples == [10, 30, 50, 80]
    assert losses.losses == [5.0, None, None, 2.0]


def test_a_training_that_was_over_in_its_warm_up():
    points = [CurvePoint(2, 1.0, 15, 0.5, 1e-3, 1.0, 1)]  # the second batch was a smaller one
    single_rank = rank(0, warmup_block_steps=1, warmup_block_s=[9.0, 0.5], warmup_losses=[5.0, 4.0])
    losses = compute_losses(record("ddp", 1, ranks=[single_rank], quality=Quality(curve=points)))
    assert (losses.steps, losses.samples) == ([1, 2], [10, 15])
    assert (losses.seconds, losses.losses) == ([0.0, 0.5], [5.0, 4.0])
