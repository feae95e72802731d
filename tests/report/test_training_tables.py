"""Trainings: their tables and curves, epochs, and the losses of a run."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from scalebench.core.result import CurvePoint, Quality
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.losses import compute_losses
from scalebench.report.sections import training
from scalebench.report.tables import write_tables
from tests.builders.frames import frame_of_results
from tests.builders.runs import rank, record
from tests.builders.sweeps import failed_run, falling_metrics, run, training_run, write_results
from tests.report.section_blocks import build_blocks, get_block, select_blocks, write_report_data


@pytest.mark.parametrize(("runs", "reached"), [([training_run(seed=seed) for seed in range(3)], [3]),
                                               ([run("ddp_gloo", 2)], None)])  # fmt: skip
def test_files_of_a_sweep_have_a_row_a_training(tmp_path, runs, reached):
    write_results(tmp_path, runs)
    write_tables(tmp_path)
    csv, parquet = tmp_path / "trainings.csv", tmp_path / "trainings.parquet"
    if reached is None:
        assert not csv.exists()
    else:
        assert list(pd.read_csv(csv)["reached"]) == reached == list(pd.read_parquet(parquet)["reached"])


def two_ranks(**changes):
    first = {"warmup_block_steps": 3, "warmup_block_s": [0.5, 0.2], "warmup_losses": [9.0, None],
             "block_losses": [2.0, 1.0]}  # fmt: skip
    second = {**first, "warmup_losses": [5.0, None], "block_losses": [4.0, None], **changes}
    return [rank(0, [0.1, 0.2], [30, 30], **first), rank(1, [0.3, 0.1], [10, 10], **second)]


def losses_of(*ranks, points=()):
    """Return steps, samples, seconds and losses at the ends of blocks."""
    quality = {"quality": Quality(curve=list(points))} if points else {}
    ends = compute_losses(record("ddp", max(1, len(ranks)), ranks=list(ranks), **quality))
    names = {"steps": "steps", "samples": "samples", "seconds": "seconds", "losses": "loss"}
    return SimpleNamespace(**{name: [getattr(end, field) for end in ends] for name, field in names.items()})


def test_blocks_of_all_ranks_weighted_by_samples():
    losses = losses_of(*two_ranks())
    assert losses.steps == [3, 6, 8, 10]
    assert losses.samples == [60, 120, 160, 200]  # 20 a step over both, then what each block had
    assert losses.seconds == pytest.approx([0.5, 0.7, 1.0, 1.2])
    assert losses.losses == [pytest.approx((9 * 30 + 5 * 10) / 40), None, pytest.approx((2 * 30 + 4 * 10) / 40), 1.0]


def test_older_and_incomplete_records():
    """Without losses of the warm-up, and yet with its time; blocks that a rank did not finish; nothing measured."""
    assert losses_of(*two_ranks(warmup_losses=[])).losses[0] == 9.0  # of the rank that has one
    older = losses_of(rank(0, [0.1], [30], warmup_block_s=[0.5, 0.2], warmup_block_steps=3))
    assert older.losses == [None, None, 0.5] and older.seconds == pytest.approx([0.5, 0.7, 0.8])
    assert losses_of(rank(0, [0.1], [30], warmup_block_s=[0.5])).steps == [2]  # its number of steps is not recorded
    ranks = two_ranks()
    ranks[1].block_s, ranks[1].block_samples = [0.3], [10]
    assert losses_of(*ranks).steps == [3, 6, 8]
    assert losses_of().steps == losses_of(rank(0)).steps == []


def test_blocks_that_a_point_cut_short_are_stepped_over():
    """Points after 7 and 14 steps: blocks of 3 fit once and twice, and what is left of each epoch is in no series.
    The first step, which compiles, is in no seconds; the last batch of an epoch is a smaller one."""
    points = [CurvePoint(step, 0.0, samples, s, 1e-3, 1.0, 1) for step, samples, s in ((7, 60, 1.6), (14, 120, 3.7))]
    warmup = {"warmup_block_steps": 1, "warmup_block_s": [9.0, 0.2, 0.2], "warmup_losses": [5.0, 4.0, 3.0]}
    blocks = {"block_steps": 3, "block_losses": [2.0, 1.0, 0.5]}
    losses = losses_of(rank(0, [0.6, 0.8, 0.9], [30, 30, 30], **warmup, **blocks), points=points)
    assert losses.steps == [1, 2, 3, 6, 7, 10, 13, 14]
    assert losses.samples == [10, 20, 30, 60, 60, 90, 120, 120]
    assert losses.seconds == pytest.approx([0.0, 0.2, 0.4, 1.0, 1.6, 2.4, 3.3, 3.7])
    assert losses.losses == [5.0, 4.0, 3.0, 2.0, None, 1.0, 0.5, None]


def test_points_between_which_no_block_fits_and_a_training_that_was_over_in_its_warm_up():
    points = [CurvePoint(step, 0.0, 10 * step, 0.1 * step, 1e-3, 1.0, 1) for step in (1, 3, 5, 8)]
    warmup = {"warmup_block_steps": 1, "warmup_block_s": [9.0], "warmup_losses": [5.0]}
    losses = losses_of(rank(0, [0.6], [30], block_steps=3, block_losses=[2.0], **warmup), points=points)
    assert losses.steps == [1, 3, 5, 8] and losses.samples == [10, 30, 50, 80]
    assert losses.losses == [5.0, None, None, 2.0]
    points = [CurvePoint(2, 1.0, 15, 0.5, 1e-3, 1.0, 1)]  # the second batch was a smaller one
    losses = losses_of(rank(0, warmup_block_steps=1, warmup_block_s=[9.0, 0.5], warmup_losses=[5.0, 4.0]),
                       points=points)  # fmt: skip
    assert (losses.steps, losses.samples) == ([1, 2], [10, 15])
    assert (losses.seconds, losses.losses) == ([0.0, 0.5], [5.0, 4.0])


def make_section(folder, *results):
    return build_blocks(training.list_trainings, folder, results)


def test_one_seed_is_its_own_curve_and_has_no_band(tmp_path):
    section = make_section(tmp_path, training_run(values=falling_metrics(400), target=None))
    chart, table = get_block(section, Chart, "training-1-epochs"), get_block(section, Table)
    (line,) = chart.series
    assert not line.low and len(line.x) <= 300 and (line.x[0], line.x[-1]) == (1, 400) and chart.y.log
    assert not {"target", "reached", "time to target (95 %)"} & set(table.columns)
    assert "seeds" not in chart.caption and not select_blocks(section, Paragraph)
    two = make_section(tmp_path / "two", training_run(), training_run(seed=1))
    assert "seeds" in get_block(two, Chart, "training-1-epochs").caption


def test_the_terminal_has_a_narrow_table_of_trainings_and_a_wide_one_and_sentences_of_those_with_seeds():
    runs = [training_run(name, seed=seed) for name in ("ddp_gloo", "mirrored") for seed in (0, 1)]
    frame = frame_of_results(runs, [Path(each.run_id) for each in runs])
    assert len(training.list_terminal_sentences(frame)) == 2
    runs = [training_run("bare_torch", 1), training_run(metric="m\x1b]0;x\nse"), run("ddp_gloo", 4)]
    frame = frame_of_results(runs, [Path(each.run_id) for each in runs])
    tables = [*training.make_terminal_tables(frame)]
    expected = ["bare_torch on 1 device", "ddp_gloo on 2 devices"]
    assert [row.cells[0].text for table in tables for row in table.rows] == expected
    assert ["gap" in table.columns for table in (tables[0], next(training.make_terminal_tables(frame, True)))] == [
        False,
        True,
    ]
    assert [*training.make_terminal_tables(frame[frame["strategy"] == "ddp_gloo"].tail(1))] == []


def test_rules_are_names_and_a_training_without_validation_has_the_rest_of_its_row(tmp_path):
    settings = [{"learning_rate_rule": rule, "base_batch": 10, "learning_rate": 1e-3} for rule in ("none", "sqrt")]
    settings.append({"schedule": "cosine", "base_batch": 10})
    results = [training_run(settings=each, run_id=str(number)) for number, each in enumerate(settings)]
    table = get_block(make_section(tmp_path / "rules", *results), Table)
    names = ("learning rate rule none", "learning rate rule sqrt", "schedule=cosine, learning rate rule none")
    assert sorted(row.cells[0].text for row in table.rows) == [f"ddp_gloo on 2 devices, {name}" for name in names]
    assert [row.cells[4].text for row in table.rows] == ["none", "sqrt from 10", "none"]
    bare = training_run(target=None)
    for point in bare.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    bare.quality.metric = bare.quality.metric_name = None
    section = make_section(tmp_path / "bare", bare)
    assert not select_blocks(section, Chart) and get_block(section, Table).rows[0].cells[6].text == "3"


def test_costs_that_were_not_measured_have_no_columns(tmp_path):
    report_data, names = write_report_data(tmp_path), [*training.EPOCH_HEADS][2:]
    for name in names:
        report_data.pooled[name] = pd.array([pd.NA] * len(report_data.pooled), dtype="Float64")
    report_data.pooled = report_data.pooled.drop(columns=names[0])  # an older frame
    assert get_block(training.epoch_groups(report_data), Table).columns[-1] == "steps per epoch"
    no_epoch = run("ddp_gloo", 1)
    no_epoch.workload.train_samples = None
    for each in (failed_run(), no_epoch):
        assert build_blocks(training.epoch_groups, tmp_path / each.run_id, [each]) == []


def make_losses(folder, *results):
    return build_blocks(training.list_losses, folder, results)


def test_losses_without_the_size_of_the_data_set_and_of_long_series(tmp_path):
    one = run("ddp_gloo", 1)
    one.workload.train_samples = None
    (chart,) = select_blocks(make_losses(tmp_path / "samples", one, run("horovod_gloo", 1)), Chart)
    assert (chart.id, *(line.x[-1] for line in chart.series)) == ("learning-0-samples", 800, 800)
    long = run("ddp_gloo", 1, blocks=2000)
    long.ranks[0].block_losses[1234] = 55.0
    (chart,) = select_blocks(make_losses(tmp_path / "long", long), Chart)
    assert len(chart.series[0].x) <= training.MAX_CURVE_POINTS and 55.0 in chart.series[0].y


def test_the_caption_describes_how_long_runs_and_trainings_are(tmp_path):
    caption = get_block(make_losses(tmp_path, run("ddp_gloo", 1), training_run()), Table).caption
    assert "train.stop" in caption and "The others are as long as their figures" in caption
