"""The monitor's own process: how it samples, how it ends, and that it is never left behind nor fails a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scalebench.core.run_folder import MONITOR_FILE
from scalebench.core.spec import write_spec
from scalebench.measure.monitor import monitor_process
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.monitor.time_series import read_series
from tests.builders.runs import alive, simulated_spec, wait_until
from tests.nvml_stand_in import put_in

SPEC = simulated_spec(measure={"monitor": True})
PARENT = """
import sys, time
from pathlib import Path
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.core.spec import read_spec
with MonitorProcess(read_spec(Path(".")), Path(".")) as kept:
    print(kept._process.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_spec(SPEC, tmp_path)
    return tmp_path


def stand_in(folder: Path, code: str) -> str:
    """A module that does `code` in place of the monitor."""
    (folder / "monitor_stand_in.py").write_text(code)
    return "monitor_stand_in"


@pytest.mark.slow
def test_ten_times_and_twice_a_second(folder: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, LOST_AFTER=100)
    with MonitorProcess(SPEC, folder) as kept:
        assert kept._process is not None
        time.sleep(2.5)
        niceness = psutil.Process(kept._process.pid).nice()
        threads = psutil.Process(kept._process.pid).num_threads()
    assert kept.reason is None and niceness == 10 and threads == 1  # neither numpy nor pyarrow is there yet
    found = read_series(folder / MONITOR_FILE)

    def rate_hz(source: str, quantity: str) -> float:
        times_s = found.times_s(source, quantity)
        return (len(times_s) - 1) / (times_s[-1] - times_s[0])

    assert 3 < rate_hz("gpu0", "power_w") < 15  # fewer where others keep the cores busy
    assert 0.7 < rate_hz("cpu", "programs_s") < 3.5
    assert rate_hz("gpu0", "pcie_sent_bytes_per_s") < 3
    lost_s, last_s = found.times_s("gpu1", "lost"), found.times_s("gpu0", "power_w")[-1]
    assert len(lost_s) == 1 and found.times_s("gpu1", "power_w")[-1] <= lost_s[0] < last_s
    assert found.values("gpu0", "energy_j") and not found.values("gpu1", "energy_j")
    assert not found.sources("process:")  # the monitor is no rank


def test_an_end_before_it_is_up_leaves_a_series_too(folder: Path) -> None:
    with MonitorProcess(SPEC, folder) as kept:
        pass
    assert kept.reason is None
    assert read_series(folder / MONITOR_FILE).values("memory", "available_bytes")


def test_it_ends_with_a_parent_that_is_killed(folder: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = 0
    try:
        pid = int(parent.stdout.readline())
        assert alive([pid]) == [pid]
        parent.kill()
        parent.wait()
        wait_until(lambda: not alive([pid]), 10.0)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        if pid and alive([pid]):  # not by the guard's hand: it is nobody's child by now
            os.kill(pid, signal.SIGKILL)
    assert not (folder / MONITOR_FILE).exists()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no such luck')", "no such luck"),
        ("import sys; sys.exit(3)", "the monitor ended with exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "the monitor was killed by SIGSEGV"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_monitor_that_crashes_is_a_reason(code: str, reason: str, folder: Path) -> None:
    with MonitorProcess(SPEC, folder, stand_in(folder, code)) as kept:
        assert kept._process is not None
        wait_until(lambda: not alive([kept._process.pid]))
    assert kept.reason == reason


def test_a_monitor_that_hangs_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_process, "END_LIMIT_S", 0.3)
    # SIGTERM is blocked from the start, so it need not do anything to pass it over.
    with MonitorProcess(SPEC, folder, stand_in(folder, "import time; time.sleep(600)")) as kept:
        assert kept._process is not None
        pid = kept._process.pid
    assert kept.reason == "the monitor did not end within 0.3 s" and not alive([pid])


def test_ctrl_c_while_it_ends_kills_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        MonitorProcess(SPEC, folder, stand_in(folder, "import time; time.sleep(600)")) as k,
    ):
        assert k._process is not None
        monkeypatch.setattr(k._process, "communicate", interrupted)
    assert not alive([k._process.pid])


def test_no_process_to_be_had_is_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise BlockingIOError(11, os.strerror(11))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with MonitorProcess(SPEC, folder) as kept:
        pass
    assert kept.reason == f"the monitor could not be started: {os.strerror(11)}"


def test_signals_are_as_before_when_it_runs(folder: Path) -> None:
    with MonitorProcess(SPEC, folder, stand_in(folder, "")):
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("why", ["measure.monitor=false", "debug=true"])
def test_it_is_not_started_where_nobody_wants_it(why: str, tmp_path: Path) -> None:
    spec = simulated_spec(measure={"monitor": why == "debug=true"}, debug=why == "debug=true")
    with MonitorProcess(spec, tmp_path) as kept:
        assert kept._process is None
    assert kept.reason == why


def test_a_series_that_cannot_be_written_is_a_reason(folder: Path) -> None:
    (folder / MONITOR_FILE).mkdir()
    with MonitorProcess(SPEC, folder) as kept:
        pass
    assert kept.reason == "the series could not be written: Is a directory"


def test_gpus_that_cannot_be_asked_are_a_reason_for_a_run_on_gpus(
    folder: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    put_in(monkeypatch, nvml_library, INIT=9)
    spec = replace(SPEC, device="cuda")
    write_spec(spec, folder)
    with MonitorProcess(spec, folder) as kept:
        pass
    assert kept.reason is not None and kept.reason.startswith("no GPU figures: ") and "Driver Not" in kept.reason
    assert read_series(folder / MONITOR_FILE).names
