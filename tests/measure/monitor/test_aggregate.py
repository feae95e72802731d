"""The monitor's part of the record: of runs with real processes, and of artificial series of several nodes."""

import dataclasses
import os

import pytest

from scalebench.analysis import load
from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import MonitorRecord, read_result
from scalebench.core.run_folder import MONITOR_FILE, monitor_path
from scalebench.core.spec import RankPlacement
from scalebench.measure.monitor import summary
from scalebench.measure.monitor.summary import MonitorPart, make_monitor_part
from scalebench.measure.nodes import NodeReport
from scalebench.runner.parent import run_spec
from tests.builders.runs import MACHINE, rank, simulated_spec
from tests.measure.monitor.builders import BEGIN_S, series
from tests.nvml_stand_in import put_in

FLAGS_OF_OTHERS = {"busy_machine", "swapping"}  # depend on other programs on this machine


def gpu_spec(setup_s):
    """Return a run of two processes that sleep, each of which claims to drive a GPU. `setup_s` gives the monitor time
    to start where it has to wait for a core."""
    options = {"step_s": 0.002, "setup_s": setup_s}
    spec = simulated_spec(2, options, {"monitor": True, "min_s": 1.0, "max_s": 1.0})
    return dataclasses.replace(spec, device="cuda")


def flags(result):
    return set(result.flags) - FLAGS_OF_OTHERS - {"oversubscribed"}


def test_a_run_on_gpus_and_the_flags_of_their_conditions(tmp_path, nvml_library, monkeypatch):
    """The process on the first one is this test, which is not foreign."""
    conditions = {"TEMPERATURE_0": 88, "REASONS_0": 0x8, "SM_CLOCK_1": 1300, "PROCESSES_1": os.getppid()}
    put_in(monkeypatch, nvml_library, PROCESSES_0=os.getpid(), **conditions)
    result = run_spec(gpu_spec(setup_s=2.0), tmp_path / "run")
    m = result.monitor
    assert flags(result) == {"hot_at_start", "throttled", "unequal_clocks", "foreign_process"} and m.reason is None
    assert m.throttle_reasons == ["hw_slowdown"] and (tmp_path / "run" / MONITOR_FILE).exists()
    assert 0 < m.cpu_util_mean <= 1.05 and 0 <= m.cpu_util_ours_mean < 0.9
    assert 1e6 < m.rss_anon_bytes_max < m.rss_bytes_max < 1e9
    assert read_result(tmp_path / "run" / "result.json") == result
    assert m.gpu_util_mean == pytest.approx(0.6) and m.gpu_power_w_mean == pytest.approx(400.0)
    # The made-up counter goes by the clock; the rows bear the time of the sample's begin.
    assert m.energy_j == pytest.approx(400.0 * result.phases.measure_s, rel=0.1) and m.energy_from == "counter+power"
    assert (m.sm_clock_mhz_min, m.mem_clock_mhz_min) == (1300.0, 1215.0)
    assert [device.energy_from for device in m.devices] == ["counter", "power"]
    (row,) = load.load(tmp_path / "run").to_dict("records")
    assert row["throttle_reasons"] == "hw_slowdown" and "foreign_process" in row["flags"]
    assert row["cpu_util_mean"] == m.cpu_util_mean and row["rss_anon_bytes_max"] == m.rss_anon_bytes_max
    samples = sum(sum(r.block_samples) for r in result.ranks)
    assert row["energy_j_per_sample"] == pytest.approx(m.energy_j / samples) and row["energy_from"] == "counter+power"


def test_a_monitor_without_figures_is_a_reason_and_no_failed_run(tmp_path, monkeypatch):
    spec = simulated_spec()
    part = make_monitor_part(spec, tmp_path, [], MACHINE, "measure.monitor=false")
    assert part == MonitorPart(MonitorRecord(reason="measure.monitor=false"), [])
    (tmp_path / MONITOR_FILE).write_bytes(b"half")
    part = make_monitor_part(spec, tmp_path, [], MACHINE, None)
    assert part.monitor.file is None and part.monitor.reason.startswith("the series could not be read")
    options = {"fault": "raise", "fault_phase": "setup"}
    result = run_spec(simulated_spec(options=options, measure={"monitor": True}), tmp_path / "failed")
    expected = MonitorRecord(file=MONITOR_FILE, reason="nothing was measured")
    assert (result.status, result.monitor) == ("failed", expected)

    def broken(*args):
        raise ValueError("two\nlines")

    monkeypatch.setattr(summary, "summarize_series", broken)
    result = run_spec(simulated_spec(measure={"monitor": True}), tmp_path / "run")
    reason = "the series could not be read: ValueError: two lines"
    assert (result.status, result.monitor) == ("ok", MonitorRecord(reason=reason))


AHEAD_S = 15.0  # of node 1's clock: by that of node 0 its measured phase would be another part of its series
GPUS = [Gpu(index, "samples up", f"GPU-{index}", 2**35, 1410, 1215, 400.0, 0, None) for index in range(3)]


def columns(node, util_share, sm_clock_mhz=1400.0):
    """Return the columns of a node with 4 x (node + 1) cores, half of them busy; its two GPUs are NVML's 1 and 2."""
    cores, ranks = 4.0 * (node + 1), [2 * node, 2 * node + 1]
    at = AHEAD_S * node
    values = {
        "cpu/cores": cores, "cpu/busy_s": lambda t: cores / 2 * t, "cpu/programs_s": lambda t: 1.05 * t,
        "ours/cpu_s": lambda t: 1.0 * t, "memory/available_bytes": 1e9 * (node + 1), "swap/in_bytes": 0.0,
        "swap/out_bytes": 0.0, "net:eth0/sent_bytes": lambda t: 1e6 * (node + 1) * t, "net:eth0/received_bytes": 0.0,
        "net:lo/sent_bytes": 0.0, "disk/read_bytes": 0.0, "disk/written_bytes": 0.0,
    }  # fmt: skip
    for number in ranks:
        values |= {f"process:{number}/cpu_s": lambda t: 0.5 * t, f"process:{number}/rss_bytes": 1e8}
    for index in (1, 2):
        values |= {
            f"gpu{index}/util_share": lambda t: util_share if 10 + at <= t <= 20 + at else 0.0,
            f"gpu{index}/power_w": 100.0 * (node + 1), f"gpu{index}/sm_clock_mhz": sm_clock_mhz,
            f"gpu{index}/mem_clock_mhz": 1200.0,
        }  # fmt: skip
    return values


def measured_rank(number, is_known=True):
    node, name = number // 2, f"samples up GPU-{1 + number % 2}" if is_known else None
    begin_s = BEGIN_S + 10.0 + AHEAD_S * node
    marks_s = {"warmup": begin_s - 5.0, "measure": begin_s, "evaluate": begin_s + 10.0}
    changes = {"hostname": f"n{node}", "clock_offset_s": AHEAD_S if node else None, "gpus": [name], "marks_s": marks_s}
    return rank(number, **changes)


def spec_of(device="cuda"):
    places = [RankPlacement(r, r % 2, r // 2, [r % 2], [], 1) for r in range(4)]
    spec = dataclasses.replace(simulated_spec(), nodes=2, places=places, device=device)
    spec.config.hardware.hosts = ["n0:2", "n1:2"]
    return spec


REPORTS = [
    NodeReport(node, 2 * node, dataclasses.replace(MACHINE, hostname=f"n{node}", gpus=GPUS)) for node in range(2)
]


def combine(tmp_path, monkeypatch, samples, reports=None, unknown=(), device="cuda"):
    by_path = {}
    for node, each in enumerate(samples):
        if each is not None:
            path = monitor_path(tmp_path, node)
            path.touch()
            by_path[path] = each
    monkeypatch.setattr(summary, "read_series", by_path.__getitem__)
    ranks = [measured_rank(number, number not in unknown) for number in range(4)]
    return make_monitor_part(spec_of(device), tmp_path, ranks, MACHINE, None, REPORTS if reports is None else reports)


def both(**changes):
    return [series(columns(0, 0.9), end_s=60.0), series(columns(1, 0.5, **changes), end_s=60.0)]


def test_figures_and_flags_of_two_nodes_are_combined(tmp_path, monkeypatch):
    result = combine(tmp_path, monkeypatch, both())
    m = result.monitor
    assert (m.file, m.reason, result.flags) == ("monitor.parquet", None, [])
    assert [(d.node, d.index) for d in m.devices] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [d.gpu_util_mean for d in m.devices] == pytest.approx([0.9, 0.9, 0.5, 0.5])  # each by its own clock
    assert m.gpu_util_mean == pytest.approx(0.7) and m.gpu_power_w_mean == pytest.approx(600.0)
    assert (m.energy_j, m.energy_from) == (pytest.approx(6000.0), "power")
    assert m.cpu_util_mean == pytest.approx(0.5) and m.cpu_util_ours_mean == pytest.approx(2.0 / 12)
    assert m.cpu_cores_others_mean == pytest.approx(0.1)
    assert (m.rss_bytes_max, m.memory_available_bytes_min) == (400_000_000, 1_000_000_000)
    assert m.net_sent_bytes_per_s == pytest.approx(3e6) and m.swap_in_bytes == 0
    assert m.infiniband_sent_bytes_per_s is None
    # The time of a lost GPU is by the clock of rank 0.
    busy = columns(1, 0.5) | {"cpu/programs_s": lambda t: 3.0 * t, "swap/in_bytes": lambda t: 1e7 * t}
    result = combine(tmp_path, monkeypatch, [both()[0], series(busy, end_s=60.0)])
    assert result.flags == ["busy_machine", "swapping"]
    assert combine(tmp_path, monkeypatch, both(sm_clock_mhz=1300.0)).flags == ["unequal_clocks"]
    lost = series(columns(1, 0.5) | {"gpu2/lost": 1.0}, end_s=60.0)
    result = combine(tmp_path, monkeypatch, [both()[0], lost])
    assert result.flags == ["gpu_lost"]
    assert [d.lost_at_s for d in result.monitor.devices] == [None, None, None, BEGIN_S - AHEAD_S]


def test_a_missing_part_makes_a_figure_null(tmp_path, monkeypatch):
    first, second = REPORTS
    killed = dataclasses.replace(second, monitor_reason="the monitor was killed by SIGKILL")
    for samples, reports, reason in (
        ([both()[0], None], [first, killed], "node 1: the monitor was killed by SIGKILL"),
        (both(), [first, None], "node 1: the agent of its first rank reported no machine"),
    ):
        m = combine(tmp_path, monkeypatch, samples, reports).monitor
        assert [(d.node, d.index, d.sm_clock_mhz_min) for d in m.devices] == [(0, 1, 1400.0), (0, 2, 1400.0)]
        assert m == MonitorRecord(file=m.file, reason=reason, devices=m.devices)
        monitor_path(tmp_path, 1).unlink(missing_ok=True)
    blind = dataclasses.replace(second, monitor_reason="no GPU figures: no NVML")
    m = combine(tmp_path, monkeypatch, both(), [first, blind], [3]).monitor
    assert (m.gpu_util_mean, m.energy_j, len(m.devices)) == (None, None, 2)
    assert m.cpu_util_mean == pytest.approx(0.5) and m.reason == "node 1: no GPU figures: no NVML"
    m = combine(tmp_path, monkeypatch, both(), unknown=[0]).monitor
    assert (m.gpu_util_mean, len(m.devices)) == (None, 2)
    m = combine(tmp_path, monkeypatch, both(), unknown=range(4), device="cpu").monitor
    assert m.devices == [] and m.gpu_util_mean is None and m.cpu_util_mean == pytest.approx(0.5)
    for node in range(2):
        monitor_path(tmp_path, node).unlink()
    off = [dataclasses.replace(report, monitor_reason="measure.monitor=false") for report in REPORTS]
    m = combine(tmp_path, monkeypatch, [None, None], off).monitor
    assert m == MonitorRecord(reason="measure.monitor=false"), "a reason of all nodes stands once"
