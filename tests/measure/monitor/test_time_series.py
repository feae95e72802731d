"""Figures over a stretch of time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.measure.monitor.time_series import Rows, Series, Window, read_series
from tests.measure.monitor.builders import BEGIN_S, WINDOW, series


def test_gauges_are_cut_to_the_window() -> None:
    found = series({"gpu0/power_w": lambda t: 100.0 if 10 <= t <= 20 else 900.0})
    assert found.mean("gpu0", "power_w", WINDOW) == 100.0
    assert found.largest("gpu0", "power_w", WINDOW) == found.smallest("gpu0", "power_w", WINDOW) == 100.0
    assert found.mean("gpu1", "power_w", WINDOW) is None
    assert found.mean("gpu0", "power_w", Window(BEGIN_S + 40, BEGIN_S + 50)) is None


def test_a_counter_between_its_samples() -> None:
    found = series({"cpu/busy_s": lambda t: 5 + 3 * t}, every_s=0.7)
    assert found.counted("cpu", "busy_s", WINDOW) == pytest.approx(30.0)
    assert found.counted("cpu", "busy_s", Window(BEGIN_S + 10.1, BEGIN_S + 10.2)) == pytest.approx(0.3, rel=1e-4)


def test_an_integral_between_its_samples() -> None:
    found = series({"gpu0/power_w": lambda t: 2 * t}, every_s=0.7)
    assert found.integral("gpu0", "power_w", WINDOW) == pytest.approx(300.0)


GAPS = ((8.0, 9.0), (9.5, 11.0), (14.0, 16.0), (19.0, 40.0))  # seconds since BEGIN_S; 6 of 10 are left of WINDOW


def gapped(gaps: tuple[tuple[float, float], ...] = GAPS) -> Window:
    return Window(WINDOW.begin_s, WINDOW.end_s, tuple((BEGIN_S + begin, BEGIN_S + end) for begin, end in gaps))


def test_gaps_are_no_part_of_a_window() -> None:
    assert [(begin - BEGIN_S, end - BEGIN_S) for begin, end in gapped().pieces] == [(11.0, 14.0), (16.0, 19.0)]
    assert gapped().seconds == 6.0 and WINDOW.pieces == [(WINDOW.begin_s, WINDOW.end_s)]
    assert gapped(((0.0, 30.0),)).pieces == [] and gapped(((0.0, 30.0),)).seconds == 0
    assert gapped(((21.0, 30.0),)).pieces == WINDOW.pieces


def test_figures_leave_the_gaps_out() -> None:
    def within(t: float) -> bool:
        return any(begin < t < end for begin, end in GAPS)

    found = series({"gpu0/power_w": lambda t: 900.0 if within(t) else 100.0}, every_s=0.01)
    assert found.largest("gpu0", "power_w", gapped()) == found.mean("gpu0", "power_w", gapped()) == 100.0
    assert found.integral("gpu0", "power_w", gapped()) == pytest.approx(600.0)
    counter = series({"cpu/busy_s": lambda t: 3 * t + (7 if t > 15 else 0)}, every_s=0.01)
    assert counter.counted("cpu", "busy_s", gapped()) == pytest.approx(18.0, rel=1e-6)
    assert counter.counted("cpu", "busy_s", WINDOW) == pytest.approx(37.0, rel=1e-6)
    everything = gapped(((0.0, 30.0),))
    assert counter.counted("cpu", "busy_s", everything) is None and counter.mean("cpu", "busy_s", everything) is None


@pytest.mark.parametrize(("end_s", "known"), [(19.5, True), (18.5, False), (9.0, False)])
def test_a_counter_that_ended_early_speaks_for_the_whole_only_if_little_is_missing(end_s: float, known: bool) -> None:
    found = series({"cpu/busy_s": lambda t: 3 * t, "gpu0/power_w": 7.0}, end_s=end_s)
    assert (found.counted("cpu", "busy_s", WINDOW) is not None) == known
    assert (found.integral("gpu0", "power_w", WINDOW) is not None) == known
    if known:
        assert found.counted("cpu", "busy_s", WINDOW) == pytest.approx(30.0)
        assert found.integral("gpu0", "power_w", WINDOW) == pytest.approx(70.0)


def test_a_counter_that_was_set_back_tells_nothing() -> None:
    found = series({"net:eth0/sent_bytes": lambda t: 100 * t if t < 15 else t})
    assert found.counted("net:eth0", "sent_bytes", WINDOW) is None


def test_one_sample_is_no_stretch() -> None:
    found = series({"cpu/busy_s": 1.0}, begin_s=15.0, end_s=15.0)
    assert found.counted("cpu", "busy_s", WINDOW) is None and found.integral("cpu", "busy_s", WINDOW) is None
    assert Series({}).counted("cpu", "busy_s", WINDOW) is None


def test_half_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "monitor.parquet").write_bytes(b"PAR1half")
    with pytest.raises((OSError, ValueError)):
        read_series(tmp_path / "monitor.parquet")


def test_reading_loads_no_pandas(tmp_path: Path) -> None:
    """It would be half a second at the end of each run."""
    rows = Rows()
    rows.add(1.0, "cpu", "busy_s", 2.0)
    rows.write(tmp_path / "monitor.parquet")
    code = (
        "import sys; from pathlib import Path; from scalebench.measure.monitor.time_series import read_series\n"
        "assert read_series(Path('monitor.parquet')).values('cpu', 'busy_s') == [2.0]\n"
        "assert 'pandas' not in sys.modules and 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
