"""Device-hours and joules of a run, by epoch and until the target: figures of records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.analysis.load import frame_of_results
from scalebench.analysis.repeats import geometric_mean_over_repeats, pool_results
from scalebench.core.result import MonitorRecord, Quality, Result
from tests.builders.runs import record

NAMES = ("device_hours_per_epoch", "device_hours_to_target", "energy_j_per_epoch", "energy_j_to_target")


def of(*results: Result, table: Any = frame_of_results) -> list[dict[str, Any]]:
    rows = table(list(results), [Path("x")] * len(results)).to_dict("records")
    return [{name: None if pd.isna(row[name]) else row[name] for name in (*NAMES, "epoch_s")} for row in rows]


def test_they_are_columns_of_numbers_side_by_side() -> None:
    first = FRAME_COLUMNS.index(NAMES[0])
    assert tuple(FRAME_COLUMNS[first : first + 4]) == NAMES
    assert {str(frame_of_results([], [])[name].dtype) for name in NAMES} == {"Float64"}


def test_an_epoch_costs_the_time_of_all_devices_and_the_energy_of_its_samples() -> None:
    """1,000 samples at 400/s on two devices; 32 blocks of 40 samples took 640 J."""
    monitor = MonitorRecord(energy_j=640.0, gpu_power_w_mean=150.0)
    (row,) = of(record(gpus=2, block_s=0.1, monitor=monitor, quality=Quality(time_to_target_s=36.0)))
    assert row["device_hours_per_epoch"] == pytest.approx(2 * 2.5 / 3600)
    assert row["device_hours_to_target"] == pytest.approx(2 * 36 / 3600)
    assert row["energy_j_per_epoch"] == pytest.approx(0.5 * 1000)
    assert row["energy_j_to_target"] == pytest.approx(150 * 36)


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, {"device_hours_per_epoch"}),
        ({"monitor": MonitorRecord(energy_j=1.0)}, {"device_hours_per_epoch", "energy_j_per_epoch"}),
        ({"monitor": MonitorRecord(gpu_power_w_mean=1.0)}, {"device_hours_per_epoch"}),
        ({"quality": Quality(time_to_target_s=1.0)}, {"device_hours_per_epoch", "device_hours_to_target"}),
        ({"block_s": None}, set()),
        ({"status": "failed"}, set()),
    ],
)
def test_what_was_not_measured_is_null(changes: dict[str, Any], known: set[str]) -> None:
    (row,) = of(record(**changes))
    assert {name for name in NAMES if row[name] is not None} == known


def test_launches_of_one_configuration_cost_their_mean() -> None:
    made = [
        record(gpus=2, block_s=0.1 + 0.01 * r, repeat=r, monitor=MonitorRecord(energy_j=640.0 * (r + 1)))
        for r in range(3)
    ]
    each, (row,) = of(*made), of(*made, table=pool_results)
    assert row["energy_j_per_epoch"] == pytest.approx(1000)
    assert row["device_hours_per_epoch"] == pytest.approx(2 * row["epoch_s"] / 3600), "of the row that it stands in"
    assert (
        row["device_hours_per_epoch"] == geometric_mean_over_repeats([one["device_hours_per_epoch"] for one in each])[0]
    )
