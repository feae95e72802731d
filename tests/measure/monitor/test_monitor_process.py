"""The monitor's own process: it is never left behind, never fails a run, and samples at its intervals."""

import os
import signal
import subprocess
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scalebench.core.run_folder import MONITOR_FILE
from scalebench.core.spec import write_spec
from scalebench.measure.monitor import __main__ as sampling
from scalebench.measure.monitor import monitor_process
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.monitor.time_series import MONITOR, RESUMED, read_series
from tests.builders.runs import find_running, simulated_spec, wait_until
from tests.nvml_stand_in import put_in

SPEC = simulated_spec(measure={"monitor": True})
PARENT = """
import sys, time
from pathlib import Path
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.core.spec import read_spec
with MonitorProcess(read_spec(Path(".")), Path(".")) as monitor:
    print(monitor._process.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")  # for modules of the tests
    write_spec(SPEC, tmp_path)
    return tmp_path


def stand_in(folder, code):
    (folder / "monitor_stand_in.py").write_text(code)
    return "monitor_stand_in"


def test_a_parked_run_is_not_sampled_and_short_slots_only_now_and_then(folder):
    with MonitorProcess(SPEC, folder) as monitor:
        process = psutil.Process(monitor._process.pid)
        wait_until(lambda: process.nice() >= 10)
        time.sleep(1.0)
        assert process.num_threads() == 1  # neither numpy nor pyarrow is loaded yet
        monitor.pause()
        time.sleep(0.7)  # for the samples at the end
        parked_s = time.time()
        time.sleep(1.2)
        resumed_s = time.time()
        for _ in range(5):
            monitor.resume()
            time.sleep(0.02)
            monitor.pause()
            time.sleep(0.02)
        time.sleep(0.5)
    series = read_series(folder / MONITOR_FILE)
    times_s = series.times_s("memory", "available_bytes")
    assert [time_s for time_s in times_s if time_s < parked_s]
    assert not [time_s for time_s in times_s if parked_s < time_s < resumed_s]
    assert len(series.times_s(MONITOR, RESUMED)) == 1
    assert not series.sources("process:")  # the monitor is no rank


def test_a_monitor_ended_during_its_start_leaves_a_series(folder):
    with MonitorProcess(SPEC, folder) as monitor:
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "restored after the start"
    assert monitor.reason is None
    assert read_series(folder / MONITOR_FILE).values("memory", "available_bytes")


def test_a_monitor_that_crashes_is_a_reason(folder):
    for code, reason in {
        "raise SystemExit('no such luck')": "no such luck",
        "import sys; sys.exit(3)": "the monitor ended with exit status 3",
        "import os; os.kill(os.getpid(), 11)": "the monitor was killed by SIGSEGV",
        "1 / 0": "ZeroDivisionError: division by zero",
    }.items():
        with MonitorProcess(SPEC, folder, stand_in(folder, code)) as monitor:
            wait_until(lambda pid=monitor._process.pid: not find_running([pid]))
        assert monitor.reason == reason


def test_a_monitor_that_hangs_is_killed(folder, monkeypatch):
    monkeypatch.setattr(monitor_process, "END_LIMIT_S", 0.3)
    # SIGTERM is blocked from the start, so that the stand-in ignores it.
    module = stand_in(folder, "import time; time.sleep(600)")
    with MonitorProcess(SPEC, folder, module) as monitor:
        pid = monitor._process.pid
    assert monitor.reason == "the monitor did not end within 0.3 s" and not find_running([pid])

    def interrupted(*args, **more):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), MonitorProcess(SPEC, folder, module) as monitor:
        monkeypatch.setattr(monitor._process, "communicate", interrupted)
    assert not find_running([monitor._process.pid]), "by Ctrl-C while it ends"


def test_a_monitor_that_cannot_start_or_write_is_a_reason(folder, monkeypatch):
    (folder / MONITOR_FILE).mkdir()
    with MonitorProcess(SPEC, folder) as monitor:
        pass
    assert monitor.reason == "the series could not be written: Is a directory"

    def refuse(*args, **more):
        raise BlockingIOError(11, os.strerror(11))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with MonitorProcess(SPEC, folder) as monitor:
        pass
    assert monitor.reason == f"the monitor could not be started: {os.strerror(11)}"
    for measure, debug, reason in ((False, False, "measure.monitor=false"), (True, True, "debug=true")):  # switched off
        with MonitorProcess(simulated_spec(measure={"monitor": measure}, debug=debug), folder) as monitor:
            assert monitor._process is None
        assert monitor.reason == reason


def test_missing_gpu_figures_are_a_reason_for_a_run_on_gpus(folder, nvml_library, monkeypatch):
    put_in(monkeypatch, nvml_library, INIT=9)
    spec = replace(SPEC, device="cuda")
    write_spec(spec, folder)
    with MonitorProcess(spec, folder) as monitor:
        pass
    assert monitor.reason.startswith("no GPU figures: ") and "Driver Not" in monitor.reason
    assert read_series(folder / MONITOR_FILE).names


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now_s=1000.0)
    clock.monotonic = clock.time = lambda: clock.now_s
    monkeypatch.setattr(sampling, "time", clock)
    return clock


@pytest.fixture
def counts(tmp_path, nvml_library, monkeypatch, clock):
    """Return a sampler, and how often it took each kind of sample."""
    put_in(monkeypatch, nvml_library)
    write_spec(simulated_spec(), tmp_path)
    sampler, taken_by_name = sampling.Sampler(tmp_path, os.getpid()), Counter()

    def count(name):
        taken_by_name[name] += 1
        sampler.rows.add(1.0, "gpu0", name, 1.0)

    parts = {part: partial(count, part.__name__) for part in sampler._interval_s}
    for name in ("_interval_s", "_due_s"):
        setattr(sampler, name, {parts[part]: value for part, value in getattr(sampler, name).items()})
    return sampler, taken_by_name


@pytest.mark.gpu
@pytest.mark.parametrize(("before", "later", "foreign", "is_known"), [
    ("{run}", "{run} 1", 1, True),  # /proc may hide processes of other users
    ("", "{run}", 0, True),
    ("", "1", 0, False),  # in a container: a process of the host, which has the number of one here
    ("4000001", "4000001 1", 1, False),
    ("", "", 0, False),
])  # fmt: skip
def test_processes_on_a_gpu_are_compared_with_those_before_the_run(
    before, later, foreign, is_known,
    tmp_path, nvml_library, monkeypatch
):  # fmt: skip
    put_in(monkeypatch, nvml_library, PROCESSES_0=before.format(run=os.getpid()))
    write_spec(replace(SPEC, device="cuda"), tmp_path)
    monkeypatch.setattr(Path, "exists", lambda path: path != Path("/proc/1"))
    sampler = sampling.Sampler(tmp_path, os.getpid())
    sampler._count_foreign_processes()
    put_in(monkeypatch, nvml_library, PROCESSES_0=later.format(run=os.getpid()))
    sampler._count_foreign_processes()
    sampler.rows.write(tmp_path / MONITOR_FILE)
    assert read_series(tmp_path / MONITOR_FILE).values("gpu0", "foreign_processes")[-1] == foreign
    assert (sampler.describe_missing() is None) == is_known


def sample_for(sampler, clock, seconds):
    end_s = clock.now_s + seconds
    while clock.now_s < end_s:
        sampler.sample()
        rest_s = sampler.seconds_to_next()
        assert 0 < rest_s <= 0.1 + 1e-9 or len(sampler.rows) > 100
        clock.now_s += rest_s


def test_each_kind_of_sample_has_its_interval(counts, clock):
    sampler, taken_by_name = counts
    sample_for(sampler, clock, 10.0)
    assert {name: pytest.approx(n, abs=2) for name, n in taken_by_name.items()} == {
        "sample": 100, "_sample_host": 20, "sample_slow": 20, "_count_foreign_processes": 5,
    }  # fmt: skip
    before = dict(taken_by_name)
    sampler.sample_all()
    assert all(taken_by_name[name] == before[name] + 1 for name in before)
    clock.now_s += 60.0
    sample_for(sampler, clock, 1.0)
    assert taken_by_name["sample"] <= before["sample"] + 13, "samples missed in a stall are not made up for"


def test_a_long_run_is_sampled_less_and_less_often(counts, clock, monkeypatch):
    sampler, taken_by_name = counts
    sampler._slowing_rows = 200
    monkeypatch.setattr(sampling, "ROWS_BEFORE_SLOWING", 200)
    per_period = []
    for _ in range(4):
        before = taken_by_name["sample"]
        sample_for(sampler, clock, 100.0)
        per_period.append(taken_by_name["sample"] - before)
    assert len(sampler.rows) < 1500 and per_period[0] > 200 and per_period[-1] < per_period[0] / 2
