"""Figures of the record from series of known truth, the measured phase being the seconds from 10 to 20 of 30."""

from __future__ import annotations

import pytest

from scalebench.core.result import CurvePoint, Monitor
from scalebench.measure.monitor.summary import measured, summarise
from scalebench.measure.monitor.time_series import Series, Window
from tests.builders.runs import rank
from tests.measure.monitor.builders import BEGIN_S, WINDOW, joined, series


def within(inside: float, outside: float):
    """A figure that is another before and after the measured phase."""
    return lambda t: inside if 10 <= t <= 20 else outside


def grows(inside: float, outside: float):
    """A counter that grows by so much a second, in the measured phase and outside."""
    return lambda t: 1e6 + outside * min(t, 10) + inside * min(max(t - 10, 0), 10) + outside * max(t - 20, 0)


def gpu(index: int, counter: bool = True, **curves: object) -> Series:
    columns = {
        "util_share": within(0.8, 0.1), "memory_util_share": within(0.3, 0.0), "memory_used_bytes": within(2e9, 9e9),
        "power_w": within(200.0 + 100 * index, 50.0), "sm_clock_mhz": within(1400.0, 300.0),
        "mem_clock_mhz": within(1200.0, 400.0), "temperature_c": within(70.0, 90.0), "throttled_none": 1.0,
        "pcie_sent_bytes_per_s": within(5e6, 0.0), "pcie_received_bytes_per_s": within(6e6, 0.0),
    }  # fmt: skip
    if counter:
        columns["energy_j"] = grows(210.0 + 100 * index, 10.0)
    return series({f"gpu{index}/{name}": curve for name, curve in {**columns, **curves}.items()})


def test_one_gpu() -> None:
    found = summarise(gpu(0), WINDOW, [0])
    assert (found.gpu_util_mean, found.gpu_power_w_mean) == (pytest.approx(0.8), pytest.approx(200.0))
    assert (found.energy_j, found.energy_from) == (pytest.approx(2100.0), "counter")
    assert (found.sm_clock_mhz_min, found.sm_clock_mhz_mean) == (1400.0, 1400.0)
    assert (found.mem_clock_mhz_min, found.mem_clock_mhz_mean) == (1200.0, 1200.0)
    assert (found.gpu_temperature_c_max, found.throttle_reasons) == (70.0, [])
    (device,) = found.devices
    assert (device.index, device.memory_used_bytes_max, device.memory_util_mean) == (
        0,
        2_000_000_000,
        pytest.approx(0.3),
    )
    assert (device.pcie_sent_bytes_per_s, device.pcie_received_bytes_per_s) == (5e6, 6e6)
    assert (device.nvlink_sent_bytes_per_s, device.lost_at_s) == (None, None)


def test_two_gpus_of_three_and_energy_without_a_counter() -> None:
    links = {"nvlink_sent_bytes": grows(7e9, 0.0), "nvlink_received_bytes": grows(8e9, 0.0)}
    two = gpu(2, counter=False, sm_clock_mhz=within(1300.0, 300.0), temperature_c=75.0, util_share=0.6, **links)
    found = summarise(joined(gpu(0), gpu(1), two), WINDOW, [0, 2])
    assert found.gpu_util_mean == pytest.approx(0.7)
    assert found.gpu_power_w_mean == pytest.approx(200.0 + 400.0)
    assert (found.energy_j, found.energy_from) == (pytest.approx(2100.0 + 4000.0), "counter+power")
    assert [device.energy_from for device in found.devices] == ["counter", "power"]
    assert (found.sm_clock_mhz_min, found.sm_clock_mhz_mean) == (1300.0, 1350.0)
    assert found.gpu_temperature_c_max == 75.0
    assert found.devices[1].nvlink_sent_bytes_per_s == pytest.approx(7e9)
    assert found.devices[1].nvlink_received_bytes_per_s == pytest.approx(8e9)


def test_a_part_never_stands_for_the_whole() -> None:
    lost = series({"gpu1/power_w": 300.0, "gpu1/sm_clock_mhz": 1380.0}, end_s=15.0)
    marked = series({"gpu1/lost": 1.0}, begin_s=15.0, end_s=15.0)
    found = summarise(joined(gpu(0), lost, marked), WINDOW, [0, 1])
    assert (found.energy_j, found.energy_from, found.gpu_util_mean) == (None, None, None)
    assert found.devices[0].energy_j == pytest.approx(2100.0)
    assert (found.devices[1].energy_j, found.devices[1].energy_from) == (None, None)
    assert found.devices[1].lost_at_s == BEGIN_S + 15.0
    assert found.devices[1].throttle_reasons is None


def test_what_held_clocks_back_in_the_measured_phase() -> None:
    early = series({"gpu0/throttled_hw_slowdown": 1.0}, end_s=9.0)
    capped = series({"gpu0/throttled_sw_power_cap": 1.0, "gpu0/throttled_gpu_idle": 1.0}, begin_s=12.0, end_s=13.0)
    warm = series({"gpu1/throttled_sw_thermal_slowdown": 1.0})
    found = summarise(joined(gpu(0), early, capped, warm), WINDOW, [0, 1])
    assert found.throttle_reasons == ["sw_power_cap", "sw_thermal_slowdown"]
    assert found.devices[0].throttle_reasons == ["sw_power_cap"]


def test_cores_and_memory() -> None:
    found = summarise(
        joined(
            series({"cpu/cores": 4.0}, end_s=0.0),
            series(
                {
                    "cpu/busy_s": grows(3.0, 1.0), "cpu/programs_s": grows(2.9, 1.0), "ours/cpu_s": grows(2.4, 0.0),
                    "process:0/cpu_s": grows(1.0, 0.0), "process:1/cpu_s": grows(1.2, 0.0),
                    "process:0/rss_bytes": within(5e8, 9e9), "process:1/rss_bytes": within(6e8, 9e9),
                    "process:0/rss_anon_bytes": within(1e8, 9e9), "process:1/rss_anon_bytes": lambda t: 1e7 * t,
                    "memory/available_bytes": lambda t: 1e10 - 1e8 * t, "swap/in_bytes": grows(0.0, 5e6),
                    "swap/out_bytes": grows(4096.0, 0.0),
                },
                every_s=0.5,
            ),
        ),
        WINDOW,
        [],
    )  # fmt: skip
    assert found.cpu_util_mean == pytest.approx(0.75)
    assert found.cpu_util_ours_mean == pytest.approx(2.2 / 4)
    assert found.cpu_cores_others_mean == pytest.approx(0.5)
    assert (found.rss_bytes_max, found.rss_anon_bytes_max) == (1_100_000_000, 300_000_000)
    assert found.memory_available_bytes_min == pytest.approx(8e9)
    assert (found.swap_in_bytes, found.swap_out_bytes) == (0, 40960)
    assert (found.gpu_util_mean, found.energy_j, found.throttle_reasons) == (None, None, None)


def test_traffic() -> None:
    counters = {
        "net:lo/sent_bytes": 1e3, "net:lo/received_bytes": 1e3, "net:eth0/sent_bytes": 2e3, "net:ib0/sent_bytes": 3e3,
        "net:eth0/received_bytes": 4e3, "net:ib0/received_bytes": 5e3, "disk/read_bytes": 6e3,
        "disk/written_bytes": 7e3, "infiniband:mlx5_0/1/sent_bytes": 8e3,
    }  # fmt: skip
    made = series({name: grows(rate, 99.0) for name, rate in counters.items()}, every_s=0.5)
    found = summarise(made, WINDOW, [])
    assert (found.net_sent_bytes_per_s, found.net_received_bytes_per_s) == (pytest.approx(5e3), pytest.approx(9e3))
    assert found.loopback_bytes_per_s == pytest.approx(1e3)
    assert (found.disk_read_bytes_per_s, found.disk_written_bytes_per_s) == (pytest.approx(6e3), pytest.approx(7e3))
    assert (found.infiniband_sent_bytes_per_s, found.infiniband_received_bytes_per_s) == (pytest.approx(8e3), None)


def test_nothing_seen_is_null_throughout() -> None:
    assert summarise(Series({}), WINDOW, []) == Monitor(file="monitor.parquet")
    (device,) = summarise(Series({}), WINDOW, [3]).devices
    assert {value for name, value in vars(device).items() if name != "index"} == {None}


def test_the_measured_phase() -> None:
    marks = {"launch": 1.0, "setup": 2.0, "warmup": 3.0, "measure": 5.0, "probes": 9.0, "end": 10.0}
    assert measured(rank(marks_s=marks)) == Window(5.0, 9.0)
    assert measured(rank(marks_s={"launch": 1.0, "end": 2.0})) is None
    points = [CurvePoint(1, 1.0, 1, 1.0, 1.0, None, 0, evaluate_s=0.5, at_s=at_s) for at_s in (4.0, 6.0)]
    assert measured(rank(marks_s=marks, curve=points)) == Window(5.0, 9.0, ((4.0, 4.5), (6.0, 6.5)))
    assert measured(rank(marks_s={"measure": 1.0})) is None and measured(None) is None
