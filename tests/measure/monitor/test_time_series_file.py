"""The rows of a series, written to a file and read again."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from scalebench.measure.monitor.time_series import SampleRows, TimeWindow, read_series


def test_rows_are_read_again_in_order_of_time(tmp_path: Path) -> None:
    rows = SampleRows()
    rows.add(2.0, "gpu0", "power_w", 20.0)
    rows.add(1.0, "cpu", "busy_s", 7.0)
    rows.add(1.0, "gpu0", "power_w", 10)
    rows.write(tmp_path / "monitor.parquet")
    series = read_series(tmp_path / "monitor.parquet")
    assert series.names == [("cpu", "busy_s"), ("gpu0", "power_w")]
    assert series.values("gpu0", "power_w") == [10.0, 20.0]
    assert series.times_s("gpu0", "power_w") == [1.0, 2.0]
    assert series.values("gpu0", "power_w", TimeWindow(1.5, 2.5)) == [20.0]
    assert os.listdir(tmp_path) == ["monitor.parquet"]


def test_the_file_has_the_long_format(tmp_path: Path) -> None:
    import pandas as pd

    rows = SampleRows()
    rows.add(1.0, "gpu0", "power_w", 10.0)
    rows.write(tmp_path / "monitor.parquet")
    table = pd.read_parquet(tmp_path / "monitor.parquet")
    assert table.to_dict("records") == [{"time_s": 1.0, "source": "gpu0", "quantity": "power_w", "value": 10.0}]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_value_that_is_not_finite_is_no_row(value: float | None, tmp_path: Path) -> None:
    rows = SampleRows()
    rows.add(1.0, "gpu0", "power_w", value)
    assert len(rows) == 0
    rows.write(tmp_path / "monitor.parquet")
    assert read_series(tmp_path / "monitor.parquet").names == []


def test_a_file_that_cannot_be_completed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        SampleRows().write(tmp_path / "monitor.parquet")
    assert os.listdir(tmp_path) == []
