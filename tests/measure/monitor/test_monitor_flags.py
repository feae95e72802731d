"""Each flag, on artificial series: values that set it, and values that just do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.measure.monitor.flags import detect_flags
from scalebench.measure.monitor.summary import summarize_monitor
from scalebench.measure.monitor.time_series import TimeSeries, TimeWindow
from tests.measure.monitor.builders import BEGIN_S, WINDOW, Curve, join, series

GPUS = [Gpu(index, "made up", f"GPU-{index}", 2**35, 1410, 1215, 400.0, 0, None) for index in range(2)]
WARMUP_S = BEGIN_S + 5.0
QUIET: dict[str, Curve] = {
    "cpu/cores": 8.0, "cpu/programs_s": lambda t: 3.1 * t, "ours/cpu_s": lambda t: 3.0 * t, "swap/in_bytes": 7e9,
    "swap/out_bytes": 7e9, "gpu0/slowdown_temperature_c": 89.0, "gpu1/slowdown_temperature_c": 89.0,
    **{f"gpu{i}/{name}": value for i in range(2) for name, value in {
        "sm_clock_mhz": 1380.0, "mem_clock_mhz": 1215.0, "temperature_c": 60.0, "throttled_none": 1.0,
        "foreign_processes": 0.0,
    }.items()},
}  # fmt: skip


def flags(
    changes: dict[str, Curve] | None = None,
    *more: TimeSeries,
    used: tuple[int, ...] = (0, 1),
    window: TimeWindow | None = WINDOW,
    gpus: list[Gpu] = GPUS,
) -> list[str]:
    samples = join(series({**QUIET, **(changes or {})}), *more)
    figures = summarize_monitor(samples, window or WINDOW, used)
    return detect_flags(samples, window, WARMUP_S, figures, [gpus[index] for index in used])


def test_a_quiet_machine_has_no_flags() -> None:
    assert flags() == []
    assert detect_flags(TimeSeries({}), WINDOW, WARMUP_S, summarize_monitor(TimeSeries({}), WINDOW, [0, 1]), GPUS) == []
    assert detect_flags(TimeSeries({}), None, None, summarize_monitor(TimeSeries({}), WINDOW, []), []) == []


@pytest.mark.parametrize(("begin_s", "flagged"), [(0.0, True), (12.0, True), (21.0, False)])
def test_a_foreign_process_is_flagged(begin_s: float, flagged: bool) -> None:
    """Before and in the measured phase; later ones have no effect."""

    def count(t: float) -> float:
        return float(begin_s <= t <= begin_s + 2)

    assert flags({"gpu1/foreign_processes": count}) == ["foreign_process"] * flagged
    assert flags({"gpu1/foreign_processes": count}, used=(0,)) == []
    assert flags({"gpu1/foreign_processes": count}, window=None) == ["foreign_process"]


@pytest.mark.parametrize(("cores", "flagged"), [(0.15, False), (0.21, True)])
def test_a_busy_machine_is_flagged(cores: float, flagged: bool) -> None:
    """Eight cores: from 0.18 of a core on."""
    changes: dict[str, Curve] = {"cpu/programs_s": lambda t: (3.0 + cores) * t}
    assert flags(changes) == ["busy_machine"] * flagged
    assert flags(changes, window=TimeWindow(BEGIN_S + 10.0, BEGIN_S + 10.5)) == []  # too short
    assert flags(changes, window=None) == []


@pytest.mark.parametrize(("celsius", "flagged"), [(83.9, False), (84.0, True)])
def test_a_hot_start_is_flagged(celsius: float, flagged: bool) -> None:
    assert flags({"gpu1/temperature_c": lambda t: celsius if t < 3 else 60.0}) == ["hot_at_start"] * flagged
    assert flags({"gpu1/temperature_c": lambda t: celsius if t > 6 else 60.0}) == []  # heated by the run itself


def test_clocks_limited_for_heat_at_the_start_are_flagged() -> None:
    limited = series({"gpu0/throttled_sw_thermal_slowdown": 1.0}, end_s=2.0)
    assert flags({}, limited) == ["hot_at_start"]
    assert flags({}, series({"gpu0/throttled_sw_power_cap": 1.0}, end_s=2.0)) == []


@pytest.mark.parametrize(("end_s", "flagged"), [(10.4, False), (10.7, True)])
def test_throttling_is_flagged(end_s: float, flagged: bool) -> None:
    """Of a hundred samples, more than five."""
    assert flags({}, series({"gpu1/throttled_sw_power_cap": 1.0}, begin_s=9.0, end_s=end_s)) == ["throttled"] * flagged


@pytest.mark.parametrize("reason", ["gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"])
def test_clocks_that_a_user_set_are_not_throttled(reason: str) -> None:
    assert flags({}, series({f"gpu0/throttled_{reason}": 1.0})) == []


@pytest.mark.parametrize(("mhz", "flagged"), [(1198.0, False), (1150.0, True)])
def test_unequal_clocks_are_flagged(mhz: float, flagged: bool) -> None:
    """The slow cards of the study: memory clocks that are lower by 5 %."""
    assert flags({"gpu1/mem_clock_mhz": mhz}) == ["unequal_clocks"] * flagged
    assert flags({"gpu1/mem_clock_mhz": mhz}, used=(1,)) == []


def test_maximum_clocks_are_compared_too() -> None:
    assert flags({}, gpus=[GPUS[0], replace(GPUS[1], sm_clock_max_mhz=1300)]) == ["unequal_clocks"]
    assert flags({}, gpus=[GPUS[0], replace(GPUS[1], sm_clock_max_mhz=None)]) == []
    assert flags({"gpu1/sm_clock_mhz": lambda t: 1380.0 if t > 10 else 200.0}) == []  # before it is measured


@pytest.mark.parametrize(("size_bytes", "flagged"), [(1e6, False), (2e6, True)])
def test_swapping_is_flagged(size_bytes: float, flagged: bool) -> None:
    for way in ("in", "out"):
        moved: Curve = lambda t: 7e9 + size_bytes * min(max(t - 12, 0), 1)  # noqa: E731
        assert flags({f"swap/{way}_bytes": moved}) == ["swapping"] * flagged
    assert flags({"swap/in_bytes": lambda t: 7e9 + 1e9 * min(t, 9)}) == []  # before


def test_a_lost_gpu_is_flagged() -> None:
    lost = series({"gpu1/lost": 1.0}, begin_s=15.0, end_s=15.0)
    assert flags({}, lost) == flags({}, lost, window=None) == ["gpu_lost"]
    assert flags({}, lost, used=(0,)) == []
