"""Figures of a time series over a window."""

import math
import os
import subprocess
import sys

import pandas as pd
import pytest

from scalebench.measure.monitor.time_series import SampleRows, TimeSeries, TimeWindow, read_series
from tests.measure.monitor.builders import BEGIN_S, WINDOW, series


def test_figures_are_cut_to_the_window():
    samples = series({"gpu0/power_w": lambda t: 100.0 if 10 <= t <= 20 else 900.0})
    assert samples.mean("gpu0", "power_w", WINDOW) == 100.0
    assert samples.largest("gpu0", "power_w", WINDOW) == samples.smallest("gpu0", "power_w", WINDOW) == 100.0
    assert samples.mean("gpu1", "power_w", WINDOW) is None
    assert samples.mean("gpu0", "power_w", TimeWindow(BEGIN_S + 40, BEGIN_S + 50)) is None
    # Counters and integrals are linear between their samples.
    samples = series({"cpu/busy_s": lambda t: 5 + 3 * t, "gpu0/power_w": lambda t: 2 * t}, every_s=0.7)
    assert samples.counter_growth("cpu", "busy_s", WINDOW) == pytest.approx(30.0)
    short = TimeWindow(BEGIN_S + 10.1, BEGIN_S + 10.2)
    assert samples.counter_growth("cpu", "busy_s", short) == pytest.approx(0.3, rel=1e-4)
    assert samples.integral("gpu0", "power_w", WINDOW) == pytest.approx(300.0)


GAPS = ((8.0, 9.0), (9.5, 11.0), (14.0, 16.0), (19.0, 40.0))  # seconds since BEGIN_S; 6 of 10 are left of WINDOW


def window_with_gaps(gaps=GAPS):
    return TimeWindow(WINDOW.begin_s, WINDOW.end_s, tuple((BEGIN_S + begin, BEGIN_S + end) for begin, end in gaps))


def test_gaps_are_no_part_of_a_window_nor_of_figures():
    pieces = [(begin - BEGIN_S, end - BEGIN_S) for begin, end in window_with_gaps().pieces]
    assert pieces == [(11.0, 14.0), (16.0, 19.0)]
    assert window_with_gaps().seconds == 6.0 and WINDOW.pieces == [(WINDOW.begin_s, WINDOW.end_s)]
    assert window_with_gaps(((0.0, 30.0),)).pieces == [] and window_with_gaps(((0.0, 30.0),)).seconds == 0
    assert window_with_gaps(((21.0, 30.0),)).pieces == WINDOW.pieces

    def within(t):
        return any(begin < t < end for begin, end in GAPS)

    samples = series({"gpu0/power_w": lambda t: 900.0 if within(t) else 100.0}, every_s=0.01)
    window = window_with_gaps()
    assert samples.largest("gpu0", "power_w", window) == samples.mean("gpu0", "power_w", window) == 100.0
    assert samples.integral("gpu0", "power_w", window) == pytest.approx(600.0)
    counter = series({"cpu/busy_s": lambda t: 3 * t + (7 if t > 15 else 0)}, every_s=0.01)
    assert counter.counter_growth("cpu", "busy_s", window) == pytest.approx(18.0, rel=1e-6)
    assert counter.counter_growth("cpu", "busy_s", WINDOW) == pytest.approx(37.0, rel=1e-6)
    everything = window_with_gaps(((0.0, 30.0),))
    assert counter.counter_growth("cpu", "busy_s", everything) is counter.mean("cpu", "busy_s", everything) is None


def test_a_counter_needs_samples_over_nearly_all_of_the_window():
    for end_s, grown, integral in (
        (19.5, pytest.approx(30.0), pytest.approx(70.0)),
        (18.5, None, None),
        (9.0, None, None),
    ):
        samples = series({"cpu/busy_s": lambda t: 3 * t, "gpu0/power_w": 7.0}, end_s=end_s)
        assert samples.counter_growth("cpu", "busy_s", WINDOW) == grown
        assert samples.integral("gpu0", "power_w", WINDOW) == integral
    samples = series({"net:eth0/sent_bytes": lambda t: 100 * t if t < 15 else t})  # was reset
    assert samples.counter_growth("net:eth0", "sent_bytes", WINDOW) is None
    samples = series({"cpu/busy_s": 1.0}, begin_s=15.0, end_s=15.0)
    assert samples.counter_growth("cpu", "busy_s", WINDOW) is None and samples.integral("cpu", "busy_s", WINDOW) is None
    assert TimeSeries({}).counter_growth("cpu", "busy_s", WINDOW) is None


def test_rows_are_read_again_in_order_of_time(tmp_path, monkeypatch):
    path, rows = tmp_path / "monitor.parquet", SampleRows()
    for value in (None, math.nan, math.inf):
        rows.add(1.0, "gpu0", "power_w", value)
    assert len(rows) == 0
    rows.write(path)
    assert read_series(path).names == []
    rows.add(2.0, "gpu0", "power_w", 20.0)
    rows.add(1.0, "cpu", "busy_s", 7.0)
    rows.add(1.0, "gpu0", "power_w", 10)
    rows.write(path)
    series = read_series(path)
    assert series.names == [("cpu", "busy_s"), ("gpu0", "power_w")]
    assert series.values("gpu0", "power_w") == [10.0, 20.0]
    assert series.times_s("gpu0", "power_w") == [1.0, 2.0]
    assert series.values("gpu0", "power_w", TimeWindow(1.5, 2.5)) == [20.0]
    assert os.listdir(tmp_path) == [path.name]
    first = pd.read_parquet(path).to_dict("records")[0]
    assert first == {"time_s": 2.0, "source": "gpu0", "quantity": "power_w", "value": 20.0}, "the long format"
    code = (  # pandas would take half a second at the end of each run
        "import sys; from pathlib import Path; from scalebench.measure.monitor.time_series import read_series\n"
        "assert read_series(Path('monitor.parquet')).values('cpu', 'busy_s') == [7.0]\n"
        "assert 'pandas' not in sys.modules and 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    path.write_bytes(b"PAR1half")
    with pytest.raises((OSError, ValueError)):
        read_series(path)
    path.unlink()

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        rows.write(path)
    assert os.listdir(tmp_path) == []
