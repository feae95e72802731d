"""The monitor's part of the record, from runs with real processes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from scalebench.analysis import load
from scalebench.core.result import MonitorRecord, Result, read_result
from scalebench.core.run_folder import MONITOR_FILE
from scalebench.core.spec import RankPlacement, RunSpec
from scalebench.measure.monitor import aggregate
from scalebench.measure.monitor.aggregate import MonitorPart, list_used_gpus, make_monitor_part
from scalebench.runner.parent import run_spec
from tests.builders.runs import MACHINE, rank, simulated_spec
from tests.nvml_stand_in import put_in

FLAGS_OF_OTHERS = {"busy_machine", "swapping"}  # depend on other programs on this machine


def gpu_spec(setup_s: float) -> RunSpec:
    """Return a run of two processes that sleep, each of which claims to drive a GPU.

    `setup_s` gives the monitor time to start where it has to wait for a core.
    """
    options = {"step_s": 0.002, "setup_s": setup_s}
    spec = simulated_spec(2, options, {"monitor": True, "min_s": 1.0, "max_s": 1.0})
    return dataclasses.replace(spec, device="cuda")


def flags(result: Result) -> set[str]:
    return set(result.flags) - FLAGS_OF_OTHERS - {"oversubscribed"}


@pytest.mark.slow
def test_a_run_on_cores(tmp_path: Path) -> None:
    spec = simulated_spec(options={"step_s": 0.002}, measure={"monitor": True, "min_s": 1.0, "max_s": 1.0})
    result = run_spec(spec, tmp_path / "run")
    m = result.monitor
    assert (result.status, m.file, m.reason) == ("ok", MONITOR_FILE, None)
    assert (tmp_path / "run" / MONITOR_FILE).exists()
    assert m.cpu_util_mean is not None and 0 < m.cpu_util_mean <= 1.05
    assert m.cpu_util_ours_mean is not None and 0 <= m.cpu_util_ours_mean < 0.9
    assert m.rss_bytes_max is not None and m.rss_anon_bytes_max is not None
    assert 1e6 < m.rss_anon_bytes_max < m.rss_bytes_max < 1e9
    assert (m.gpu_util_mean, m.energy_j, m.throttle_reasons, m.devices) == (None, None, None, [])
    assert read_result(tmp_path / "run" / "result.json") == result
    (row,) = load.load(tmp_path / "run").to_dict("records")
    assert row["cpu_util_mean"] == m.cpu_util_mean and row["rss_anon_bytes_max"] == m.rss_anon_bytes_max


@pytest.mark.slow
def test_a_run_on_gpus(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, PROCESSES_0=os.getpid())  # this process, which is not foreign
    result = run_spec(gpu_spec(setup_s=1.0), tmp_path / "run")
    m, seconds = result.monitor, result.phases.measure_s
    assert flags(result) == set() and m.reason is None and seconds is not None
    assert m.gpu_util_mean == pytest.approx(0.6) and m.gpu_power_w_mean == pytest.approx(400.0)
    # The made-up counter goes by the clock; the rows bear the time of the sample's begin.
    assert m.energy_j == pytest.approx(400.0 * seconds, rel=0.1) and m.energy_from == "counter+power"
    assert (m.sm_clock_mhz_min, m.mem_clock_mhz_min, m.throttle_reasons) == (1380.0, 1215.0, [])
    assert [device.energy_from for device in m.devices] == ["counter", "power"]
    (row,) = load.load(tmp_path / "run").to_dict("records")
    samples = sum(sum(r.block_samples) for r in result.ranks)
    assert row["energy_j_per_sample"] == pytest.approx(m.energy_j / samples) and row["energy_from"] == "counter+power"


def test_conditions_of_the_devices_are_flagged(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions = {"TEMPERATURE_0": 88, "REASONS_0": 0x4, "SM_CLOCK_1": 1300, "PROCESSES_1": os.getppid()}
    put_in(monkeypatch, nvml_library, **conditions)
    result = run_spec(gpu_spec(setup_s=2.0), tmp_path / "run")
    assert flags(result) == {"hot_at_start", "throttled", "unequal_clocks", "foreign_process"}
    assert result.monitor.throttle_reasons == ["sw_power_cap"]
    (row,) = load.load(tmp_path / "run").to_dict("records")
    assert row["throttle_reasons"] == "sw_power_cap" and "foreign_process" in row["flags"]


@pytest.mark.slow
def test_a_gpu_that_is_lost_during_the_run(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, LOST_AFTER=60)
    result = run_spec(gpu_spec(setup_s=1.0), tmp_path / "run")
    assert result.status == "ok" and flags(result) == {"gpu_lost"}
    assert (result.monitor.energy_j, result.monitor.gpu_util_mean) == (None, None)
    present, lost = result.monitor.devices
    assert present.energy_j is not None and present.energy_j > 0 and lost.lost_at_s is not None


def test_a_monitor_that_fails_is_no_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(aggregate, "summarize_monitor", broken)
    result = run_spec(simulated_spec(measure={"monitor": True}), tmp_path / "run")
    assert result.status == "ok"
    assert result.monitor == MonitorRecord(reason="the series could not be read: ValueError: two lines")


def test_a_missing_series_has_a_reason(tmp_path: Path) -> None:
    part = make_monitor_part(simulated_spec(), tmp_path, [], MACHINE, "measure.monitor=false")
    assert part == MonitorPart(MonitorRecord(reason="measure.monitor=false"), [])
    (tmp_path / MONITOR_FILE).write_bytes(b"half")
    part = make_monitor_part(simulated_spec(), tmp_path, [], MACHINE, None)
    assert part.monitor.file is None and (part.monitor.reason or "").startswith("the series could not be read")


def test_a_run_that_measured_nothing_has_a_reason(tmp_path: Path) -> None:
    result = run_spec(
        simulated_spec(options={"fault": "raise", "fault_phase": "setup"}, measure={"monitor": True}), tmp_path / "r"
    )
    assert (result.status, result.monitor) == (
        "failed",
        MonitorRecord(file=MONITOR_FILE, reason="nothing was measured"),
    )


def test_the_gpus_of_a_run_are_identified() -> None:
    spec = dataclasses.replace(gpu_spec(0.0), places=[RankPlacement(r, r, 0, [r], [], 1) for r in range(3)])
    local = [rank(r, hostname=os.uname().nodename) for r in range(3)]
    assert list_used_gpus(spec, local, lambda: [5, 2, 0]) == [0, 2, 5]
    assert list_used_gpus(spec, local, lambda: [5, None, 0]) == [0, 5]  # one is a part of a GPU
    assert list_used_gpus(spec, local, lambda: [5]) == [5]  # the others are not visible any more
    partly_remote = [local[0], rank(1, hostname="another"), local[2]]
    assert list_used_gpus(spec, partly_remote, lambda: [5, 2, 0]) == [0, 5]
    assert list_used_gpus(spec, [], lambda: [5, 2, 0]) == [0, 2, 5]  # no rank left a record
    assert list_used_gpus(dataclasses.replace(spec, device="cpu"), local, lambda: [5, 2, 0]) == []
