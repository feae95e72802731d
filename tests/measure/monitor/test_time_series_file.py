"""The series on its way into the file."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from scalebench.measure.monitor.time_series import Rows, Window, read_series


def test_what_was_added_is_read_again_in_the_order_of_time(tmp_path: Path) -> None:
    rows = Rows()
    rows.add(2.0, "gpu0", "power_w", 20.0)
    rows.add(1.0, "cpu", "busy_s", 7.0)
    rows.add(1.0, "gpu0", "power_w", 10)
    rows.write(tmp_path / "monitor.parquet")
    found = read_series(tmp_path / "monitor.parquet")
    assert found.names == [("cpu", "busy_s"), ("gpu0", "power_w")]
    assert found.values("gpu0", "power_w") == [10.0, 20.0]
    assert found.times_s("gpu0", "power_w") == [1.0, 2.0]
    assert found.values("gpu0", "power_w", Window(1.5, 2.5)) == [20.0]
    assert os.listdir(tmp_path) == ["monitor.parquet"]


def test_long_format_for_other_readers(tmp_path: Path) -> None:
    import pandas as pd

    rows = Rows()
    rows.add(1.0, "gpu0", "power_w", 10.0)
    rows.write(tmp_path / "monitor.parquet")
    table = pd.read_parquet(tmp_path / "monitor.parquet")
    assert table.to_dict("records") == [{"time_s": 1.0, "source": "gpu0", "quantity": "power_w", "value": 10.0}]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_no_figure_is_no_row(value: float | None, tmp_path: Path) -> None:
    rows = Rows()
    rows.add(1.0, "gpu0", "power_w", value)
    assert len(rows) == 0
    rows.write(tmp_path / "monitor.parquet")
    assert read_series(tmp_path / "monitor.parquet").names == []


def test_a_file_that_cannot_be_finished_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        Rows().write(tmp_path / "monitor.parquet")
    assert os.listdir(tmp_path) == []
