"""Columns computed for a row: the overhead of a strategy on one device, and the costs of a run."""

from pathlib import Path

import pandas as pd
import pytest

from scalebench.analysis import throughput
from scalebench.analysis.load import frame_of_results
from scalebench.core.result import MonitorRecord, Quality
from tests.builders.runs import rank, record

OVERHEAD_COLUMNS = ("overhead_share_low", "overhead_share", "overhead_share_high")


def overheads_of(*results):
    """(low, value, high) of each row, null as None."""
    table = frame_of_results(results, [Path("x")] * len(results))
    return [
        tuple(None if pd.isna(row[name]) else row[name] for name in OVERHEAD_COLUMNS)
        for row in table.to_dict("records")
    ]


def test_there_is_no_overhead_without_two_measured_runs():
    own, bare = record(), record("bare_torch")
    unmeasured = record(block_s=None, run_id="unmeasured")
    pairs = [(own, None), (None, bare), (None, None), (bare, bare), (unmeasured, bare), (own, unmeasured)]
    assert {throughput.overhead(*pair) for pair in pairs} == {None}


def test_rows_with_equal_baselines_have_equal_overheads():
    """It is that on one device, even if runs on several devices failed."""
    failed = record(gpus=8, status="failed", block_s=None)
    rows = [record(block_s=0.1), record(gpus=2, block_s=0.13), record(gpus=4, block_s=0.2), failed]
    bare, other = record("bare_torch", block_s=0.083), record("horovod_gloo", gpus=2)
    one, two, four, eight, alone, without = overheads_of(*rows, bare, other)
    assert one == two == four == eight and one[1] == pytest.approx(0.17)
    assert alone == without == (None, None, None)
    first = frame_of_results([*rows, bare], [Path("x")] * 5).to_dict("records")[0]
    assert one == (None, 1 - first["speedup_bare"], None), "limits only over repeats"


def test_a_bare_strategy_has_an_overhead_only_with_other_options():
    plain, again, fit = (record("bare_tensorflow", baseline="bare_tensorflow", run_id=name) for name in "abc")
    plain.spec["strategy"]["options"] = again.spec["strategy"]["options"] = {"loop": "custom"}
    fit.spec["strategy"]["options"] = {"loop": "fit"}
    slow = record("bare_tensorflow", baseline="bare_tensorflow", block_s=0.125, run_id="d")
    slow.spec["strategy"]["options"] = {"loop": "fit"}
    assert [row[1] for row in overheads_of(plain, again, slow)] == [None, None, pytest.approx(0.2)]
    assert overheads_of(fit) == [(None, None, None)]  # nothing to compare it with
    sleeper = record("simulated", baseline="simulated")
    assert overheads_of(sleeper, record("simulated", gpus=2, baseline="simulated")) == [(None, None, None)] * 2


def test_overheads_use_baselines_of_the_same_repeat():
    bares = [record("bare_torch", block_s=block_s, repeat=k) for k, block_s in enumerate((0.08, 0.09))]
    owns = [record(block_s=0.1, repeat=k) for k in range(3)]
    later = record(gpus=2, repeat=1)
    shares = [row[1] for row in overheads_of(*owns, later, *bares)]
    assert shares == [pytest.approx(0.2), pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.1), None, None]


COST_COLUMNS = ("device_hours_per_epoch", "device_hours_to_target", "energy_j_per_epoch", "energy_j_to_target")


def costs_of(*results, table=frame_of_results):
    rows = table(list(results), [Path("x")] * len(results)).to_dict("records")
    return [{name: None if pd.isna(row[name]) else row[name] for name in (*COST_COLUMNS, "epoch_s")} for row in rows]


def test_costs_of_an_epoch_and_to_the_target():
    """1,000 samples at 400/s on two devices; 32 blocks of 40 samples took 640 J."""
    monitor = MonitorRecord(energy_j=640.0, gpu_power_w_mean=150.0)
    (row,) = costs_of(record(gpus=2, block_s=0.1, monitor=monitor, quality=Quality(time_to_target_s=36.0)))
    assert row["device_hours_per_epoch"] == pytest.approx(2 * 2.5 / 3600)
    assert row["device_hours_to_target"] == pytest.approx(2 * 36 / 3600)
    assert row["energy_j_per_epoch"] == pytest.approx(0.5 * 1000)
    assert row["energy_j_to_target"] == pytest.approx(150 * 36)


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, {"device_hours_per_epoch"}),
        ({"monitor": MonitorRecord(energy_j=1.0)}, {"device_hours_per_epoch", "energy_j_per_epoch"}),
        ({"monitor": MonitorRecord(gpu_power_w_mean=1.0)}, {"device_hours_per_epoch"}),
        ({"quality": Quality(time_to_target_s=1.0)}, {"device_hours_per_epoch", "device_hours_to_target"}),
        ({"block_s": None}, set()),
        ({"status": "failed"}, set()),
    ],
)
def test_unmeasured_figures_are_null(changes, measured):
    (row,) = costs_of(record(**changes))
    assert {name for name in COST_COLUMNS if row[name] is not None} == measured


@pytest.mark.parametrize(
    ("seen", "peaks", "expected"), [(900, [400, 300], 900), (None, [400, 300], 700), (None, [400, None], None)]
)
def test_resident_memory_is_the_sum_of_the_peaks_where_the_monitor_saw_none(seen, peaks, expected):
    ranks = [rank(number, [0.1], rss_anon_peak_bytes=peak) for number, peak in enumerate(peaks)]
    run = record(gpus=2, ranks=ranks, monitor=MonitorRecord(rss_anon_bytes_max=seen))
    (value,) = frame_of_results([run], [Path("x")]).rss_anon_bytes_max
    assert (None if pd.isna(value) else value) == expected
