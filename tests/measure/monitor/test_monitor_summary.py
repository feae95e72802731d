"""Figures and flags of a run from artificial series, whose measured phase is the seconds from 10 to 20 of 30.

After a wanted change `python -m tests.measure.monitor.test_monitor_summary` writes golden/monitor.txt anew.
"""

import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import msgspec
import pandas as pd
import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import CurvePoint
from scalebench.core.run_folder import MONITOR_FILE
from scalebench.measure.monitor.flags import detect_flags
from scalebench.measure.monitor.summary import combine_nodes, measured_window, summarize_series
from scalebench.measure.monitor.time_series import SampleRows, TimeSeries, TimeWindow, read_series
from tests.builders.runs import rank, simulated_spec
from tests.conftest import ROOT
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


LOST = series({"gpu1/lost": 1.0}, begin_s=15.0, end_s=15.0)
LINKS = {"nvlink_sent_bytes": counter(7e9, 0.0), "nvlink_received_bytes": counter(8e9, 0.0)}
SLOWER = gpu(2, has_counter=False, sm_clock_mhz=within(1300.0, 300.0), temperature_c=75.0, util_share=0.6, **LINKS)
CORES = {
    "cpu/busy_s": counter(3.0, 1.0), "cpu/programs_s": counter(2.9, 1.0), "ours/cpu_s": counter(2.4, 0.0),
    "process:0/cpu_s": counter(1.0, 0.0), "process:1/cpu_s": counter(1.2, 0.0),
    "process:0/rss_bytes": within(5e8, 9e9), "process:1/rss_bytes": within(6e8, 9e9),
    "process:0/rss_anon_bytes": within(1e8, 9e9), "process:1/rss_anon_bytes": lambda t: 1e7 * t,
    "memory/available_bytes": lambda t: 1e10 - 1e8 * t, "swap/in_bytes": counter(0.0, 5e6),
    "swap/out_bytes": counter(4096.0, 0.0),
}  # fmt: skip
TRAFFIC = {
    "net:lo/sent_bytes": 1e3, "net:lo/received_bytes": 1e3, "net:eth0/sent_bytes": 2e3, "net:ib0/sent_bytes": 3e3,
    "net:eth0/received_bytes": 4e3, "net:ib0/received_bytes": 5e3, "disk/read_bytes": 6e3, "disk/written_bytes": 7e3,
    "infiniband:mlx5_0/1/sent_bytes": 8e3,
}  # fmt: skip
# Series, and the numbers of the GPUs of the run; golden/monitor.txt has the figures that are not null.
FIGURES = {
    "one GPU": (gpu(0), [0]),
    "one GPU, of which half was sampled": (gpu(0), [0], replace(WINDOW, scale=2.0)),
    "two GPUs of three": (join(gpu(0), gpu(1), SLOWER), [0, 2]),
    "a GPU that was lost": (
        join(gpu(0), series({"gpu1/power_w": 300.0, "gpu1/sm_clock_mhz": 1380.0}, end_s=15.0), LOST), [0, 1]
    ),
    "throttle reasons": (
        join(
            gpu(0), series({"gpu0/throttled_hw_slowdown": 1.0}, end_s=9.0),  # before the measured phase
            series({"gpu0/throttled_sw_power_cap": 1.0, "gpu0/throttled_gpu_idle": 1.0}, begin_s=12.0, end_s=13.0),
            series({"gpu1/throttled_sw_thermal_slowdown": 1.0}),
        ), [0, 1],
    ),
    "cores, memory and swap": (join(series({"cpu/cores": 4.0}, end_s=0.0), series(CORES, every_s=0.5)), []),
    "traffic": (series({name: counter(rate, 99.0) for name, rate in TRAFFIC.items()}, every_s=0.5), []),
    "no series": (TimeSeries({}), []),
    "no series of a GPU": (TimeSeries({}), [3]),
}  # fmt: skip
GOLDEN = ROOT / "tests/golden/monitor.txt"


def describe(case):
    samples, used, *window = FIGURES[case]
    node = summarize_series(samples, *(window or [WINDOW]), used)
    figures = combine_nodes(simulated_spec(), [replace(node, file=MONITOR_FILE)])
    records = {"": figures, **{f"{device.index} ": device for device in figures.devices}}
    figures.devices = []
    parts = {part: msgspec.to_builtins(record) for part, record in records.items()}
    named = ((f"{part}{name}", value) for part, record in parts.items() for name, value in record.items())
    texts = (
        (name, f"{v:.10g}" if isinstance(v, float) else v) for name, v in named if v is not None and name != "devices"
    )
    return "".join(f"{name}: {text}\n" for name, text in texts)


@pytest.mark.parametrize("case", FIGURES)
def test_the_figures_of_a_series(case):
    golden = re.findall(r"^== (.*)\n((?:(?!== ).*\n)+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
    assert describe(case) == dict(golden)[case]


def test_without_a_series_there_are_no_flags():
    assert detect_flags(TimeSeries({}), WINDOW, WARMUP_S, summarize_series(TimeSeries({}), WINDOW, [0, 1]), GPUS) == []
    assert detect_flags(TimeSeries({}), None, None, summarize_series(TimeSeries({}), WINDOW, []), []) == []


def test_the_measured_window_has_slots_that_were_sampled_and_no_evaluations():
    starts_s = [10.0, 20.0, 30.0, 40.0]
    blocks = {"block_started_at_s": starts_s, "block_rounds": [1, 2, 3, 4], "block_s": [1.0] * 4}
    taking_turns = rank(marks_s={"measure": 5.0, "end": 50.0}, **blocks)
    every_slot = TimeWindow(10.0, 41.0, ((11.0, 20.0), (21.0, 30.0), (31.0, 40.0)))
    assert measured_window(taking_turns) == every_slot
    assert measured_window(taking_turns, [9.9, 19.0, 29.0, 40.5]) == every_slot
    assert measured_window(taking_turns, [15.0, 39.0, 45.0]) == TimeWindow(20.0, 41.0, ((21.0, 40.0),), scale=2.0)
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
    figures = summarize_series(samples, window or WINDOW, used)
    return detect_flags(samples, window, WARMUP_S, figures, [gpus[index] for index in used])


CAPPED = "throttled_sw_power_cap"
SLOWER_GPUS = [GPUS[0], replace(GPUS[1], sm_clock_max_mhz=1300)]


def programs(cores):
    """Return changes in which programs of others use so much of eight cores; 0.18 of one are busy."""
    return {"cpu/programs_s": lambda t: (3.0 + cores) * t}


def quota(share):
    """Return changes in which a share of ten periods a second was cut short; before the measured phase all were."""
    cut = lambda t: 10.0 * (min(t, 10.0) + share * max(0.0, t - 10.0))  # noqa: E731
    return {"cpu/quota_periods": lambda t: 10.0 * t, "cpu/quota_periods_used_up": cut}


def swapped(way, size_bytes, from_s=12):
    return {f"swap/{way}_bytes": lambda t: 7e9 + size_bytes * min(max(t - from_s, 0), 1)}


def throttled(name, begin_s=0.0, end_s=30.0, gpus=(0,)):
    return series({f"gpu{index}/{name}": 1.0 for index in gpus}, begin_s=begin_s, end_s=end_s)


@pytest.mark.parametrize(("flag", "raised", "quiet"), [
    ("busy_machine", [[programs(0.21)]], [
        [programs(0.15)], [programs(0.21), {"window": None}],
        [programs(0.21), {"window": TimeWindow(BEGIN_S + 10.0, BEGIN_S + 10.5)}],  # too short
    ]),
    ("quota_used_up", [[quota(0.02)]], [[quota(0.0)], [quota(0.009)], [quota(0.02), {"window": None}]]),
    ("hot_at_start", [
        [{"gpu1/temperature_c": lambda t: 84.0 if t < 3 else 60.0}],
        [throttled("throttled_sw_thermal_slowdown", end_s=2.0)],
    ], [
        [{"gpu1/temperature_c": lambda t: 83.9 if t < 3 else 60.0}],
        [{"gpu1/temperature_c": lambda t: 84.0 if t > 6 else 60.0}],  # heated by the run itself
        [throttled(CAPPED, end_s=2.0)],
    ]),
    # Of a hundred samples, more than five; what a user or the power limit sets is none.
    ("throttled", [[throttled("throttled_hw_slowdown", 9.0, 10.7)]], [
        [throttled("throttled_hw_slowdown", 9.0, 10.4)], [throttled(CAPPED)], [throttled("throttled_gpu_idle")],
        *([throttled(f"throttled_{reason}")]
          for reason in ("applications_clocks_setting", "sync_boost", "display_clock_setting")),
    ]),
    # The slow cards of the study had memory clocks that are lower by 5 %. Cards at their power limit may differ.
    ("unequal_clocks", [
        [{"gpu1/mem_clock_mhz": 1150.0}], [{"gpus": SLOWER_GPUS}],
        [{"gpu0/sm_clock_mhz": 1400.0, "gpu1/sm_clock_mhz": 1300}, throttled(CAPPED, gpus=(0, 1))],
        [{"gpu0/sm_clock_mhz": 1400.0, "gpu1/sm_clock_mhz": 1350}, throttled(CAPPED, gpus=(1,))],
    ], [
        [{"gpu1/mem_clock_mhz": 1198.0}], [{"gpu1/mem_clock_mhz": 1150.0}, {"used": (1,)}],
        [{"gpu0/sm_clock_mhz": 1400.0, "gpu1/sm_clock_mhz": 1350}, throttled(CAPPED, gpus=(0, 1))],
        [{"gpus": [GPUS[0], replace(GPUS[1], sm_clock_max_mhz=None)]}],
        [{"gpu1/sm_clock_mhz": lambda t: 1380.0 if t > 10 else 200.0}],  # before it is measured
    ]),
    ("swapping", [[swapped("in", 2e6)], [swapped("out", 2e6)]], [
        [swapped("in", 1e6)], [swapped("out", 1e6)], [swapped("in", 9e9, from_s=3)],  # before
    ]),
    ("gpu_lost", [[LOST], [LOST, {"window": None}]], [[LOST, {"used": (0,)}]]),
])  # fmt: skip
def test_a_condition_is_flagged_from_its_limit_on(flag, raised, quiet):
    assert flags() == []
    for cases, expected in ((raised, [flag]), (quiet, [])):
        for case in cases:
            found = {}
            for each in (each for each in case if isinstance(each, dict)):
                found |= each
            options = {name: found.pop(name) for name in ("used", "window", "gpus") if name in found}
            more = [each for each in case if isinstance(each, TimeSeries)]
            assert flags(found, *more, **options) == expected, case


def test_a_foreign_process_is_flagged():
    """Before and in the measured phase; later ones have no effect."""
    for begin_s, flagged in ((0.0, True), (12.0, True), (21.0, False)):
        found = {"gpu1/foreign_processes": lambda t, begin_s=begin_s: float(begin_s <= t <= begin_s + 2)}
        assert flags(found) == ["foreign_process"] * flagged
        assert flags(found, used=(0,)) == []
        assert flags(found, window=None) == ["foreign_process"]


def test_figures_are_cut_to_the_window():
    samples = series({"gpu0/power_w": lambda t: 100.0 if 10 <= t <= 20 else 900.0})
    assert samples.reduce("gpu0", "power_w", WINDOW, max) == 100.0
    assert {samples.reduce("gpu0", "power_w", WINDOW, each) for each in (max, min)} == {100.0}
    assert samples.reduce("gpu1", "power_w", WINDOW, max) is None
    assert samples.reduce("gpu0", "power_w", TimeWindow(BEGIN_S + 40, BEGIN_S + 50), max) is None
    # Counters and integrals are linear between their samples.
    samples = series({"cpu/busy_s": lambda t: 5 + 3 * t, "gpu0/power_w": lambda t: 2 * t}, every_s=0.7)
    assert samples.growth("cpu", "busy_s", WINDOW) == pytest.approx(30.0)
    short = TimeWindow(BEGIN_S + 10.1, BEGIN_S + 10.2)
    assert samples.growth("cpu", "busy_s", short) == pytest.approx(0.3, rel=1e-4)
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
    assert {samples.reduce("gpu0", "power_w", window, each) for each in (max, min)} == {100.0}
    assert samples.integral("gpu0", "power_w", window) == pytest.approx(600.0)
    counter = series({"cpu/busy_s": lambda t: 3 * t + (7 if t > 15 else 0)}, every_s=0.01)
    assert counter.growth("cpu", "busy_s", window) == pytest.approx(18.0, rel=1e-6)
    assert counter.growth("cpu", "busy_s", WINDOW) == pytest.approx(37.0, rel=1e-6)
    everything = window_with_gaps(((0.0, 30.0),))
    assert counter.growth("cpu", "busy_s", everything) is counter.reduce("cpu", "busy_s", everything, max) is None


def test_a_counter_needs_samples_over_nearly_all_of_the_window():
    for end_s, grown, integral in (
        (19.5, pytest.approx(30.0), pytest.approx(70.0)),
        (18.5, None, None),
        (9.0, None, None),
    ):
        samples = series({"cpu/busy_s": lambda t: 3 * t, "gpu0/power_w": 7.0}, end_s=end_s)
        assert samples.growth("cpu", "busy_s", WINDOW) == grown
        assert samples.integral("gpu0", "power_w", WINDOW) == integral
    samples = series({"net:eth0/sent_bytes": lambda t: 100 * t if t < 15 else t})  # was reset
    assert samples.growth("net:eth0", "sent_bytes", WINDOW) is None
    samples = series({"cpu/busy_s": 1.0}, begin_s=15.0, end_s=15.0)
    assert samples.growth("cpu", "busy_s", WINDOW) is None and samples.integral("cpu", "busy_s", WINDOW) is None
    assert TimeSeries({}).growth("cpu", "busy_s", WINDOW) is None


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


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"== {case}\n{describe(case)}" for case in FIGURES), encoding="utf-8")
