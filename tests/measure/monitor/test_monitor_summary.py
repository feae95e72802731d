"""Figures of the record from artificial series, the measured phase being the seconds from 10 to 20 of 30."""

from __future__ import annotations

import pytest

from scalebench.core.result import CurvePoint, MonitorRecord
from scalebench.measure.monitor.summary import measured_window, summarize_monitor
from scalebench.measure.monitor.time_series import TimeSeries, TimeWindow
from tests.builders.runs import rank
from tests.measure.monitor.builders import BEGIN_S, WINDOW, join, series


def within(inside: float, outside: float):
    """Return a figure with another value outside the measured phase."""
    return lambda t: inside if 10 <= t <= 20 else outside


def counter(inside: float, outside: float):
    """Return a counter that grows by these amounts per second, in the measured phase and outside."""
    return lambda t: 1e6 + outside * min(t, 10) + inside * min(max(t - 10, 0), 10) + outside * max(t - 20, 0)


def gpu(index: int, has_counter: bool = True, **curves: object) -> TimeSeries:
    columns = {
        "util_share": within(0.8, 0.1), "memory_util_share": within(0.3, 0.0), "memory_used_bytes": within(2e9, 9e9),
        "power_w": within(200.0 + 100 * index, 50.0), "sm_clock_mhz": within(1400.0, 300.0),
        "mem_clock_mhz": within(1200.0, 400.0), "temperature_c": within(70.0, 90.0), "throttled_none": 1.0,
        "pcie_sent_bytes_per_s": within(5e6, 0.0), "pcie_received_bytes_per_s": within(6e6, 0.0),
    }  # fmt: skip
    if has_counter:
        columns["energy_j"] = counter(210.0 + 100 * index, 10.0)
    return series({f"gpu{index}/{name}": curve for name, curve in {**columns, **curves}.items()})


def test_the_figures_of_one_gpu() -> None:
    figures = summarize_monitor(gpu(0), WINDOW, [0])
    assert (figures.gpu_util_mean, figures.gpu_power_w_mean) == (pytest.approx(0.8), pytest.approx(200.0))
    assert (figures.energy_j, figures.energy_from) == (pytest.approx(2100.0), "counter")
    assert (figures.sm_clock_mhz_min, figures.sm_clock_mhz_mean) == (1400.0, 1400.0)
    assert (figures.mem_clock_mhz_min, figures.mem_clock_mhz_mean) == (1200.0, 1200.0)
    assert (figures.gpu_temperature_c_max, figures.throttle_reasons) == (70.0, [])
    (device,) = figures.devices
    assert (device.index, device.memory_used_bytes_max, device.memory_util_mean) == (
        0,
        2_000_000_000,
        pytest.approx(0.3),
    )
    assert (device.pcie_sent_bytes_per_s, device.pcie_received_bytes_per_s) == (5e6, 6e6)
    assert (device.nvlink_sent_bytes_per_s, device.lost_at_s) == (None, None)


def test_the_figures_of_two_gpus_of_three() -> None:
    links = {"nvlink_sent_bytes": counter(7e9, 0.0), "nvlink_received_bytes": counter(8e9, 0.0)}
    two = gpu(2, has_counter=False, sm_clock_mhz=within(1300.0, 300.0), temperature_c=75.0, util_share=0.6, **links)
    figures = summarize_monitor(join(gpu(0), gpu(1), two), WINDOW, [0, 2])
    assert figures.gpu_util_mean == pytest.approx(0.7)
    assert figures.gpu_power_w_mean == pytest.approx(200.0 + 400.0)
    assert (figures.energy_j, figures.energy_from) == (pytest.approx(2100.0 + 4000.0), "counter+power")
    assert [device.energy_from for device in figures.devices] == ["counter", "power"]
    assert (figures.sm_clock_mhz_min, figures.sm_clock_mhz_mean) == (1300.0, 1350.0)
    assert figures.gpu_temperature_c_max == 75.0
    assert figures.devices[1].nvlink_sent_bytes_per_s == pytest.approx(7e9)
    assert figures.devices[1].nvlink_received_bytes_per_s == pytest.approx(8e9)


def test_a_missing_part_makes_a_figure_null() -> None:
    lost = series({"gpu1/power_w": 300.0, "gpu1/sm_clock_mhz": 1380.0}, end_s=15.0)
    marked = series({"gpu1/lost": 1.0}, begin_s=15.0, end_s=15.0)
    figures = summarize_monitor(join(gpu(0), lost, marked), WINDOW, [0, 1])
    assert (figures.energy_j, figures.energy_from, figures.gpu_util_mean) == (None, None, None)
    assert figures.devices[0].energy_j == pytest.approx(2100.0)
    assert (figures.devices[1].energy_j, figures.devices[1].energy_from) == (None, None)
    assert figures.devices[1].lost_at_s == BEGIN_S + 15.0
    assert figures.devices[1].throttle_reasons is None


def test_throttle_reasons_are_those_of_the_measured_phase() -> None:
    early = series({"gpu0/throttled_hw_slowdown": 1.0}, end_s=9.0)
    capped = series({"gpu0/throttled_sw_power_cap": 1.0, "gpu0/throttled_gpu_idle": 1.0}, begin_s=12.0, end_s=13.0)
    warm = series({"gpu1/throttled_sw_thermal_slowdown": 1.0})
    figures = summarize_monitor(join(gpu(0), early, capped, warm), WINDOW, [0, 1])
    assert figures.throttle_reasons == ["sw_power_cap", "sw_thermal_slowdown"]
    assert figures.devices[0].throttle_reasons == ["sw_power_cap"]


def test_the_figures_of_cores_and_memory() -> None:
    figures = summarize_monitor(
        join(
            series({"cpu/cores": 4.0}, end_s=0.0),
            series(
                {
                    "cpu/busy_s": counter(3.0, 1.0), "cpu/programs_s": counter(2.9, 1.0),
                    "ours/cpu_s": counter(2.4, 0.0),
                    "process:0/cpu_s": counter(1.0, 0.0), "process:1/cpu_s": counter(1.2, 0.0),
                    "process:0/rss_bytes": within(5e8, 9e9), "process:1/rss_bytes": within(6e8, 9e9),
                    "process:0/rss_anon_bytes": within(1e8, 9e9), "process:1/rss_anon_bytes": lambda t: 1e7 * t,
                    "memory/available_bytes": lambda t: 1e10 - 1e8 * t, "swap/in_bytes": counter(0.0, 5e6),
                    "swap/out_bytes": counter(4096.0, 0.0),
                },
                every_s=0.5,
            ),
        ),
        WINDOW,
        [],
    )  # fmt: skip
    assert figures.cpu_util_mean == pytest.approx(0.75)
    assert figures.cpu_util_ours_mean == pytest.approx(2.2 / 4)
    assert figures.cpu_cores_others_mean == pytest.approx(0.5)
    assert (figures.rss_bytes_max, figures.rss_anon_bytes_max) == (1_100_000_000, 300_000_000)
    assert figures.memory_available_bytes_min == pytest.approx(8e9)
    assert (figures.swap_in_bytes, figures.swap_out_bytes) == (0, 40960)
    assert (figures.gpu_util_mean, figures.energy_j, figures.throttle_reasons) == (None, None, None)


def test_the_figures_of_traffic() -> None:
    counters = {
        "net:lo/sent_bytes": 1e3, "net:lo/received_bytes": 1e3, "net:eth0/sent_bytes": 2e3, "net:ib0/sent_bytes": 3e3,
        "net:eth0/received_bytes": 4e3, "net:ib0/received_bytes": 5e3, "disk/read_bytes": 6e3,
        "disk/written_bytes": 7e3, "infiniband:mlx5_0/1/sent_bytes": 8e3,
    }  # fmt: skip
    samples = series({name: counter(rate, 99.0) for name, rate in counters.items()}, every_s=0.5)
    figures = summarize_monitor(samples, WINDOW, [])
    assert (figures.net_sent_bytes_per_s, figures.net_received_bytes_per_s) == (pytest.approx(5e3), pytest.approx(9e3))
    assert figures.loopback_bytes_per_s == pytest.approx(1e3)
    assert (figures.disk_read_bytes_per_s, figures.disk_written_bytes_per_s) == (pytest.approx(6e3), pytest.approx(7e3))
    assert (figures.infiniband_sent_bytes_per_s, figures.infiniband_received_bytes_per_s) == (pytest.approx(8e3), None)


def test_without_samples_all_figures_are_null() -> None:
    assert summarize_monitor(TimeSeries({}), WINDOW, []) == MonitorRecord(file="monitor.parquet")
    (device,) = summarize_monitor(TimeSeries({}), WINDOW, [3]).devices
    assert {value for name, value in vars(device).items() if name != "index"} == {None}


def test_the_measured_window_excludes_evaluations() -> None:
    marks = {"launch": 1.0, "setup": 2.0, "warmup": 3.0, "measure": 5.0, "probes": 9.0, "end": 10.0}
    assert measured_window(rank(marks_s=marks)) == TimeWindow(5.0, 9.0)
    assert measured_window(rank(marks_s={"launch": 1.0, "end": 2.0})) is None
    points = [CurvePoint(1, 1.0, 1, 1.0, 1.0, None, 0, evaluate_s=0.5, at_s=at_s) for at_s in (4.0, 6.0)]
    assert measured_window(rank(marks_s=marks, curve=points)) == TimeWindow(5.0, 9.0, ((4.0, 4.5), (6.0, 6.5)))
    assert measured_window(rank(marks_s={"measure": 1.0})) is None and measured_window(None) is None
