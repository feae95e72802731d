"""Figures of the record, and the flags of a run, from artificial series; the measured phase is the seconds from 10 to
20 of 30."""

from dataclasses import replace

import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import CurvePoint, MonitorRecord
from scalebench.measure.monitor.flags import detect_flags
from scalebench.measure.monitor.summary import measured_window, summarize_monitor
from scalebench.measure.monitor.time_series import TimeSeries, TimeWindow
from tests.builders.runs import rank
from tests.measure.monitor.builders import BEGIN_S, WINDOW, join, series


def within(inside, outside):
    """Return a figure with another value outside the measured phase."""
    return lambda t: inside if 10 <= t <= 20 else outside


def counter(inside, outside):
    """Return a counter that grows by these amounts per second, in the measured phase and outside."""
    return lambda t: 1e6 + outside * min(t, 10) + inside * min(max(t - 10, 0), 10) + outside * max(t - 20, 0)


def gpu(index, has_counter=True, **curves):
    columns = {
        "util_share": within(0.8, 0.1), "memory_util_share": within(0.3, 0.0), "memory_used_bytes": within(2e9, 9e9),
        "power_w": within(200.0 + 100 * index, 50.0), "sm_clock_mhz": within(1400.0, 300.0),
        "mem_clock_mhz": within(1200.0, 400.0), "temperature_c": within(70.0, 90.0), "throttled_none": 1.0,
        "pcie_sent_bytes_per_s": within(5e6, 0.0), "pcie_received_bytes_per_s": within(6e6, 0.0),
    }  # fmt: skip
    if has_counter:
        columns["energy_j"] = counter(210.0 + 100 * index, 10.0)
    return series({f"gpu{index}/{name}": curve for name, curve in {**columns, **curves}.items()})


def test_the_figures_of_one_gpu():
    figures = summarize_monitor(gpu(0), WINDOW, [0])
    assert (figures.gpu_util_mean, figures.gpu_power_w_mean) == (pytest.approx(0.8), pytest.approx(200.0))
    assert (figures.energy_j, figures.energy_from) == (pytest.approx(2100.0), "counter")
    assert (figures.sm_clock_mhz_min, figures.sm_clock_mhz_mean) == (1400.0, 1400.0)
    assert (figures.mem_clock_mhz_min, figures.mem_clock_mhz_mean) == (1200.0, 1200.0)
    assert (figures.gpu_temperature_c_max, figures.throttle_reasons) == (70.0, [])
    (device,) = figures.devices
    assert (device.index, device.memory_used_bytes_max) == (0, 2_000_000_000)
    assert device.memory_util_mean == pytest.approx(0.3)
    assert (device.pcie_sent_bytes_per_s, device.pcie_received_bytes_per_s) == (5e6, 6e6)
    assert (device.nvlink_sent_bytes_per_s, device.lost_at_s) == (None, None)


def test_the_figures_of_two_gpus_of_three():
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


def test_a_missing_part_makes_a_figure_null():
    lost = series({"gpu1/power_w": 300.0, "gpu1/sm_clock_mhz": 1380.0}, end_s=15.0)
    marked = series({"gpu1/lost": 1.0}, begin_s=15.0, end_s=15.0)
    figures = summarize_monitor(join(gpu(0), lost, marked), WINDOW, [0, 1])
    assert (figures.energy_j, figures.energy_from, figures.gpu_util_mean) == (None, None, None)
    assert figures.devices[0].energy_j == pytest.approx(2100.0)
    assert (figures.devices[1].energy_j, figures.devices[1].energy_from) == (None, None)
    assert figures.devices[1].lost_at_s == BEGIN_S + 15.0
    assert figures.devices[1].throttle_reasons is None


def test_throttle_reasons_are_those_of_the_measured_phase():
    early = series({"gpu0/throttled_hw_slowdown": 1.0}, end_s=9.0)
    capped = series({"gpu0/throttled_sw_power_cap": 1.0, "gpu0/throttled_gpu_idle": 1.0}, begin_s=12.0, end_s=13.0)
    warm = series({"gpu1/throttled_sw_thermal_slowdown": 1.0})
    figures = summarize_monitor(join(gpu(0), early, capped, warm), WINDOW, [0, 1])
    assert figures.throttle_reasons == ["sw_power_cap", "sw_thermal_slowdown"]
    assert figures.devices[0].throttle_reasons == ["sw_power_cap"]


def test_the_figures_of_cores_and_memory():
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


def test_the_figures_of_traffic():
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


def test_without_samples_all_figures_are_null():
    assert summarize_monitor(TimeSeries({}), WINDOW, []) == MonitorRecord(file="monitor.parquet")
    (device,) = summarize_monitor(TimeSeries({}), WINDOW, [3]).devices
    assert {value for name, value in vars(device).items() if name != "index"} == {None}


def test_only_slots_that_were_sampled_count():
    starts_s = [10.0, 20.0, 30.0, 40.0]
    blocks = {"block_started_at_s": starts_s, "block_rounds": [1, 2, 3, 4], "block_s": [1.0] * 4}
    taking_turns = rank(marks_s={"measure": 5.0, "end": 50.0}, **blocks)
    every_slot = TimeWindow(10.0, 41.0, ((11.0, 20.0), (21.0, 30.0), (31.0, 40.0)))
    assert measured_window(taking_turns) == every_slot
    assert measured_window(taking_turns, [9.9, 19.0, 29.0, 40.5]) == every_slot
    assert measured_window(taking_turns, [15.0, 39.0, 45.0]) == TimeWindow(20.0, 41.0, ((21.0, 40.0),), scale=2.0)


def test_energy_is_that_of_all_slots():
    window = replace(WINDOW, scale=2.0)
    one, two = (summarize_monitor(gpu(0), each, [0]) for each in (WINDOW, window))
    assert one.energy_j and two.energy_j == 2 * one.energy_j
    assert one.gpu_power_w_mean == two.gpu_power_w_mean


def test_the_measured_window_excludes_evaluations():
    marks = {"launch": 1.0, "setup": 2.0, "warmup": 3.0, "measure": 5.0, "probes": 9.0, "end": 10.0}
    assert measured_window(rank(marks_s=marks)) == TimeWindow(5.0, 9.0)
    assert measured_window(rank(marks_s={"launch": 1.0, "end": 2.0})) is None
    points = [CurvePoint(1, 1.0, 1, 1.0, 1.0, None, 0, evaluate_s=0.5, at_s=at_s) for at_s in (4.0, 6.0)]
    assert measured_window(rank(marks_s=marks, curve=points)) == TimeWindow(5.0, 9.0, ((4.0, 4.5), (6.0, 6.5)))
    assert measured_window(rank(marks_s={"measure": 1.0})) is None and measured_window(None) is None


GPUS = [Gpu(index, "made up", f"GPU-{index}", 2**35, 1410, 1215, 400.0, 0, None) for index in range(2)]
WARMUP_S = BEGIN_S + 5.0
QUIET = {
    "cpu/cores": 8.0, "cpu/programs_s": lambda t: 3.1 * t, "ours/cpu_s": lambda t: 3.0 * t, "swap/in_bytes": 7e9,
    "swap/out_bytes": 7e9, "gpu0/slowdown_temperature_c": 89.0, "gpu1/slowdown_temperature_c": 89.0,
    **{f"gpu{i}/{name}": value for i in range(2) for name, value in {
        "sm_clock_mhz": 1380.0, "mem_clock_mhz": 1215.0, "temperature_c": 60.0, "throttled_none": 1.0,
        "foreign_processes": 0.0,
    }.items()},
}  # fmt: skip


def flags(changes=None, *more, used=(0, 1), window=WINDOW, gpus=GPUS):
    samples = join(series({**QUIET, **(changes or {})}), *more)
    figures = summarize_monitor(samples, window or WINDOW, used)
    return detect_flags(samples, window, WARMUP_S, figures, [gpus[index] for index in used])


def test_a_quiet_machine_has_no_flags():
    assert flags() == []
    assert detect_flags(TimeSeries({}), WINDOW, WARMUP_S, summarize_monitor(TimeSeries({}), WINDOW, [0, 1]), GPUS) == []
    assert detect_flags(TimeSeries({}), None, None, summarize_monitor(TimeSeries({}), WINDOW, []), []) == []


@pytest.mark.parametrize(("begin_s", "flagged"), [(0.0, True), (12.0, True), (21.0, False)])
def test_a_foreign_process_is_flagged(begin_s, flagged):
    """Before and in the measured phase; later ones have no effect."""

    def count(t):
        return float(begin_s <= t <= begin_s + 2)

    assert flags({"gpu1/foreign_processes": count}) == ["foreign_process"] * flagged
    assert flags({"gpu1/foreign_processes": count}, used=(0,)) == []
    assert flags({"gpu1/foreign_processes": count}, window=None) == ["foreign_process"]


@pytest.mark.parametrize(("cores", "flagged"), [(0.15, False), (0.21, True)])
def test_a_busy_machine_is_flagged(cores, flagged):
    """Eight cores: from 0.18 of a core on."""
    changes = {"cpu/programs_s": lambda t: (3.0 + cores) * t}
    assert flags(changes) == ["busy_machine"] * flagged
    assert flags(changes, window=TimeWindow(BEGIN_S + 10.0, BEGIN_S + 10.5)) == []  # too short
    assert flags(changes, window=None) == []


@pytest.mark.parametrize(("share", "flagged"), [(0.0, False), (0.009, False), (0.02, True)])
def test_a_quota_of_cpu_time_that_is_used_up_is_flagged(share, flagged):
    """Ten periods a second, of which a share was cut short; before the measured phase all were."""
    counts = {
        "cpu/quota_periods": lambda t: 10.0 * t,
        "cpu/quota_periods_used_up": lambda t: 10.0 * (min(t, 10.0) + share * max(0.0, t - 10.0)),
    }
    assert flags(counts) == ["quota_used_up"] * flagged
    assert flags(counts, window=None) == []


@pytest.mark.parametrize(("celsius", "flagged"), [(83.9, False), (84.0, True)])
def test_a_hot_start_is_flagged(celsius, flagged):
    assert flags({"gpu1/temperature_c": lambda t: celsius if t < 3 else 60.0}) == ["hot_at_start"] * flagged
    assert flags({"gpu1/temperature_c": lambda t: celsius if t > 6 else 60.0}) == []  # heated by the run itself


def test_clocks_limited_for_heat_at_the_start_are_flagged():
    limited = series({"gpu0/throttled_sw_thermal_slowdown": 1.0}, end_s=2.0)
    assert flags({}, limited) == ["hot_at_start"]
    assert flags({}, series({"gpu0/throttled_sw_power_cap": 1.0}, end_s=2.0)) == []


@pytest.mark.parametrize(("end_s", "flagged"), [(10.4, False), (10.7, True)])
def test_throttling_is_flagged(end_s, flagged):
    """Of a hundred samples, more than five."""
    limited = series({"gpu1/throttled_hw_slowdown": 1.0}, begin_s=9.0, end_s=end_s)
    assert flags({}, limited) == ["throttled"] * flagged


@pytest.mark.gpu
@pytest.mark.parametrize(
    "reason", ["sw_power_cap", "gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"]
)
def test_clocks_that_a_user_or_the_power_limit_set_are_not_throttled(reason):
    assert flags({}, series({f"gpu0/throttled_{reason}": 1.0})) == []


@pytest.mark.parametrize(("mhz", "flagged"), [(1198.0, False), (1150.0, True)])
def test_unequal_clocks_are_flagged(mhz, flagged):
    """The slow cards of the study: memory clocks that are lower by 5 %."""
    assert flags({"gpu1/mem_clock_mhz": mhz}) == ["unequal_clocks"] * flagged
    assert flags({"gpu1/mem_clock_mhz": mhz}, used=(1,)) == []


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("mhz", "capped", "flagged"), [(1350, (0, 1), False), (1300, (0, 1), True), (1350, (1,), True)]
)
def test_clocks_of_cards_at_their_power_limit_may_differ(mhz, capped, flagged):
    at_limit = {f"gpu{index}/throttled_sw_power_cap": 1.0 for index in capped}
    expected = ["unequal_clocks"] * flagged
    assert flags({"gpu0/sm_clock_mhz": 1400.0, "gpu1/sm_clock_mhz": mhz}, series(at_limit)) == expected


def test_maximum_clocks_are_compared_too():
    assert flags({}, gpus=[GPUS[0], replace(GPUS[1], sm_clock_max_mhz=1300)]) == ["unequal_clocks"]
    assert flags({}, gpus=[GPUS[0], replace(GPUS[1], sm_clock_max_mhz=None)]) == []
    assert flags({"gpu1/sm_clock_mhz": lambda t: 1380.0 if t > 10 else 200.0}) == []  # before it is measured


@pytest.mark.parametrize(("size_bytes", "flagged"), [(1e6, False), (2e6, True)])
def test_swapping_is_flagged(size_bytes, flagged):
    for way in ("in", "out"):
        moved = lambda t: 7e9 + size_bytes * min(max(t - 12, 0), 1)  # noqa: E731
        assert flags({f"swap/{way}_bytes": moved}) == ["swapping"] * flagged
    assert flags({"swap/in_bytes": lambda t: 7e9 + 1e9 * min(t, 9)}) == []  # before


def test_a_lost_gpu_is_flagged():
    lost = series({"gpu1/lost": 1.0}, begin_s=15.0, end_s=15.0)
    assert flags({}, lost) == flags({}, lost, window=None) == ["gpu_lost"]
    assert flags({}, lost, used=(0,)) == []
