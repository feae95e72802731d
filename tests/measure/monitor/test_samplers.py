"""Samples of made-up GPUs through the real pynvml, of the machine, and of real processes whose load is known."""

import os
import socket
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from scalebench.core import exit_with_parent
from scalebench.core.json_files import write_json
from scalebench.core.machine import cpus
from scalebench.core.run_folder import progress_path
from scalebench.measure.monitor import host_sampler
from scalebench.measure.monitor.gpu_sampler import GpuSampler
from scalebench.measure.monitor.process_sampler import MIN_OTHER_S, OTHER, ProcessSampler
from scalebench.measure.monitor.summary import name_other_programs
from scalebench.measure.monitor.time_series import SampleRows, TimeWindow, read_series
from scalebench.measure.progress import RankProgress
from tests.core.machine.conftest import put as put_file
from tests.nvml_stand_in import put_in, read_table


def read(rows, folder):
    rows.write(folder / "monitor.parquet")
    return read_series(folder / "monitor.parquet")


def sampled_gpus():
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample_slow()
    return gpus, rows


def test_everything_that_nvml_tells(nvml_library, tmp_path, monkeypatch):
    put_in(monkeypatch, nvml_library, REASONS_1=0x24, NVLINKS=2, SM_CLOCK_1=1200, PROCESSES_1="17 18")
    gpus, rows = sampled_gpus()
    gpus.sample_slow()  # of the other GPU
    assert len(gpus) == 2 and gpus.missing is None
    assert list(gpus.compute_processes()) == [(0, []), (1, [17, 18])]
    found = read(rows, tmp_path)
    told = {f"{gpu}/{quantity}": found.values(gpu, quantity)[0] for gpu, quantity in found.names}
    counters = {name: told.pop(name) for name in list(told) if name.endswith(("_bytes", "energy_j")) and "nv" in name}
    energy_j = told.pop("gpu0/energy_j")
    assert energy_j > 0 and len(counters) == 4 and min(counters.values()) > 0
    both = {
        "memory_util_share": 0.2, "mem_clock_mhz": 1215, "slowdown_temperature_c": 89, "memory_used_bytes": 2**30,
        "pcie_sent_bytes_per_s": 1e6, "pcie_received_bytes_per_s": 2e6,
    }  # fmt: skip
    first = both | {"util_share": 0.8, "power_w": 250.0, "sm_clock_mhz": 1380, "temperature_c": 60, "throttled_none": 1}
    second = both | {"util_share": 0.4, "power_w": 150.0, "sm_clock_mhz": 1200, "temperature_c": 61}
    second |= {"throttled_sw_power_cap": 1, "throttled_sw_thermal_slowdown": 1}
    expected = {f"gpu{index}/{name}": value for index, of in enumerate((first, second)) for name, value in of.items()}
    assert told == pytest.approx(expected)


@pytest.mark.gpu
def test_power_is_that_of_the_moment_where_nvml_has_it(nvml_library, tmp_path, monkeypatch):
    """Else it is not supported, or unknown to an older driver, or left as it was."""
    for field_mw, power_w in ((123456, 123.456), ({"error": 3}, 250.0), ({"error": 2}, 250.0), (0, 250.0)):
        with monkeypatch.context() as patch:
            put_in(patch, nvml_library, changes={"nvmlDeviceGetFieldValues 186": [field_mw]})
            assert read(sampled_gpus()[1], tmp_path).values("gpu0", "power_w") == [pytest.approx(power_w)]


@pytest.mark.gpu
def test_a_quantity_that_a_card_does_not_support_has_no_row(nvml_library, tmp_path, monkeypatch):
    for table, quantities in {
        "tesla_m60": "memory_used_bytes power_w temperature_c util_share memory_util_share",
        "gb10": "power_w temperature_c util_share memory_util_share",
        "mig_a100": "memory_used_bytes power_w temperature_c",
        "dgx1_v100": "",
    }.items():
        with monkeypatch.context() as patch:
            put_in(patch, nvml_library, table)
            gpus, rows = sampled_gpus()
        assert len(gpus) == read_table(table)["gpus"]
        names = read(rows, tmp_path).names if len(rows) else []
        assert {name for gpu, name in names if gpu == "gpu0"} == set(quantities.split()), table
    put_in(monkeypatch, nvml_library, INIT=9)
    gpus, rows = sampled_gpus()
    assert (len(gpus), len(rows), list(gpus.compute_processes())) == (0, 0, [])
    assert "Driver Not Loaded" in gpus.missing


def test_a_lost_gpu_is_recorded_once_and_its_rows_stop(nvml_library, tmp_path, monkeypatch):
    lost = tmp_path / "lost"
    put_in(monkeypatch, nvml_library, LOST_FILE=lost)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    lost.touch()
    for _ in range(2):
        gpus.sample()
        gpus.sample_slow()
    found = read(rows, tmp_path)
    assert (len(gpus), found.values("gpu1", "lost"), found.values("gpu0", "lost")) == (1, [1.0], [])
    assert (len(found.values("gpu0", "power_w")), len(found.values("gpu1", "power_w"))) == (3, 1)
    assert [index for index, _ in gpus.compute_processes()] == [0]
    # The energy counter agrees with the power, and an unsupported one has no row.
    times_s, energy_j = found.times_s("gpu0", "energy_j"), found.values("gpu0", "energy_j")
    taken_s = times_s[-1] - times_s[0]  # of the rows, a moment before the counter was read
    assert energy_j[-1] - energy_j[0] == pytest.approx(250.0 * taken_s, abs=250.0 * 0.05 + 0.01)
    assert not found.values("gpu1", "energy_j")
    assert not [quantity for _, quantity in found.names if quantity.startswith("nvlink")]
    from_the_start = SampleRows()
    assert len(GpuSampler(from_the_start)) == 1
    assert read(from_the_start, tmp_path).values("gpu1", "lost", TimeWindow(0.0, 2e9)) == [1.0]


TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def put(monkeypatch, tmp_path):
    monkeypatch.setattr(cpus, "SYSTEM_ROOT", tmp_path / "root")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2})
    return partial(put_file, tmp_path / "root")


def sampled_host(folder):
    rows = SampleRows()
    host_sampler.HostSampler(rows).sample()
    return read(rows, folder)


def test_the_cores_that_we_may_use(put, tmp_path):
    cores = "\n".join(f"cpu{n} {100 * n} {n} {10 * n} 7000 9 {4 * n} {2 * n} {n} 0 0" for n in range(4))
    put("proc/stat", f"cpu  9 9 9 9 9 9 9 9 0 0\n{cores}\nintr 1 2 3\n")
    found = sampled_host(tmp_path)
    assert found.values("cpu", "cores") == [2.0]
    for quantity, ticks in {"programs_s": 3 * 111, "busy_s": 3 * 117, "stolen_s": 3}.items():
        assert found.values("cpu", quantity) == [pytest.approx(ticks / TICKS)]
    assert cpus.read_cpu_times().busy_s == pytest.approx(3 * 118 / TICKS)
    assert cpus.read_cpu_times().idle_s == pytest.approx(2 * 7009 / TICKS)
    for text in ("", "cpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n", "cpu1 a b c\n"):  # have no times
        put("proc/stat", text)
        found = sampled_host(tmp_path)
        assert [quantity for source, quantity in found.names if source == "cpu"] == ["cores"]
        assert found.values("memory", "available_bytes")[0] > 0  # and nothing else is kept from being told


@pytest.mark.parametrize(("files", "counts"), [
    ({"cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/cpu.stat": "{stat}"}, [[80.0], [7.0]]),
    ({"cpu.max": "5 10", "cpu.stat": "{stat}", "a/cpu.max": "9 10"}, [[80.0], [7.0]]),  # of the folder above
    ({"cpu.max": "max 100000", "cpu.stat": "{stat}"}, [[], []]),
    ({"cpu.max": "150000 100000", "cpu.stat": "usage_usec 5\n"}, [[], []]),
])  # fmt: skip
def test_how_often_the_quota_of_cpu_time_was_used_up(files, counts, put, tmp_path):
    """tests/core/machine has the quotas of cgroups of either version."""
    put("proc/self/cgroup", "0::/a\n")
    for name, text in files.items():
        put(
            f"sys/fs/cgroup/{name}", text.format(stat="usage_usec 9\nnr_periods 80\nnr_throttled 7\nthrottled_usec 5\n")
        )
    found = sampled_host(tmp_path)
    assert [found.values("cpu", name) for name in ("quota_periods", "quota_periods_used_up")] == counts


def test_infiniband_counts_in_fours_and_loopbacks_of_their_network(put, tmp_path):
    for port, sent in (("1", "1000\n"), ("2", "N/A\n")):
        put(f"sys/class/infiniband/mlx5_0/ports/{port}/counters/port_xmit_data", sent)
        put(f"sys/class/infiniband/mlx5_0/ports/{port}/counters/port_rcv_data", "50\n")
    found = sampled_host(tmp_path)
    for port, sent in (("1", [4000.0]), ("2", [])):
        assert found.values(f"infiniband:mlx5_0/{port}", "sent_bytes") == sent
        assert found.values(f"infiniband:mlx5_0/{port}", "received_bytes") == [200.0]
    # The machine's own counts other programs, and none of the run's bytes.
    counters = "3000 9 0 0 0 0 0 0 2000 8 0 0 0 0 0 0"
    put("proc/7/net/dev", f"Inter-|\n face |bytes\n  eth0: {counters}\n    lo: {counters}\n")
    for pid, sent in ((7, [2000.0]), (None, []), (8, [])):  # there is none before the first rank, or after the last one
        rows = SampleRows()
        host_sampler.HostSampler(rows, lambda pid=pid: pid).sample()
        assert read(rows, tmp_path).values("net:lo", "sent_bytes") == sent
    assert len(sampled_host(tmp_path).values("net:lo", "sent_bytes")) == 1


def test_swap_counters_that_psutil_did_not_find_are_not_0(tmp_path, monkeypatch):
    found = psutil.swap_memory()

    def none():
        warnings.warn("no counters", RuntimeWarning, stacklevel=1)
        return found

    monkeypatch.setattr(psutil, "swap_memory", none)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a program, where a warning is no error
        series = sampled_host(tmp_path)  # of this machine
    assert not series.sources("swap")
    assert series.values("cpu", "cores") == [len(os.sched_getaffinity(0))]
    assert 0 < series.values("memory", "available_bytes")[0] < 2**50
    assert not series.sources("infiniband:") or Path("/sys/class/infiniband").exists()


ROOT_PID = os.getpid()
SPIN = "print(1, flush=True)\nwhile True: pass"
SLEEP = "print(1, flush=True)\nimport time; time.sleep(60)"
HOLD = f"held = b'x' * 200_000_000\n{SLEEP}"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


@contextmanager
def running(code):
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def is_rank(folder, rank, pid):
    write_json(progress_path(folder, rank), RankProgress(rank, pid, "measure", time.time()))


def test_the_time_of_a_spinning_rank_is_that_of_the_kernel(tmp_path):
    """On a busy machine it may get less than a core: compared with the count of the kernel."""

    rows = SampleRows()
    processes = ProcessSampler(rows, tmp_path, ROOT_PID, range(2))
    with running(SPIN) as spinning, running(SLEEP) as idle:
        is_rank(tmp_path, 0, spinning)
        is_rank(tmp_path, 1, idle)
        processes.sample()
        begin_s = sum(psutil.Process(spinning).cpu_times()[:2])
        time.sleep(0.5)
        processes.sample()
        time.sleep(0.5)
        end_s = sum(psutil.Process(spinning).cpu_times()[:2])
        processes.sample()
    series = read(rows, tmp_path)
    first_s, _, last_s = series.times_s("process:0", "cpu_s")
    window = TimeWindow(first_s, last_s)
    spun_s = series.growth("process:0", "cpu_s", window)
    assert spun_s == pytest.approx(end_s - begin_s, rel=0.3, abs=0.1)
    assert 0.1 < spun_s <= window.seconds * 1.1
    assert series.growth("process:1", "cpu_s", window) <= 0.05
    assert series.growth("ours", "cpu_s", window) >= spun_s - 1e-6  # this test is part of it


@pytest.mark.parametrize("code", [HOLD, CHILD], ids=["its own", "of a child"])
def test_memory_of_a_rank_includes_its_children(code, tmp_path):
    rows = SampleRows()
    processes = ProcessSampler(rows, tmp_path, ROOT_PID, range(1))
    with running(code) as pid:
        is_rank(tmp_path, 0, pid)
        processes.sample()
    series = read(rows, tmp_path)
    (anonymous,), (resident,) = (series.values("process:0", name) for name in ("rss_anon_bytes", "rss_bytes"))
    assert 200e6 < anonymous < 300e6
    assert anonymous < resident < 400e6


def test_processes_that_come_and_go(tmp_path, monkeypatch):
    rows = SampleRows()
    processes = ProcessSampler(rows, tmp_path, ROOT_PID, range(1))
    with running(SPIN) as pid:
        is_rank(tmp_path, 0, pid)
        processes.sample()
        assert pid in processes.ours
    processes.sample()  # it has ended since the last search
    processes.search()
    processes.sample()
    assert pid not in processes.ours
    series = read(rows, tmp_path)
    assert len(series.values("process:0", "cpu_s")) < len(series.values("ours", "cpu_s")) == 3
    assert series.values("ours", "cpu_s") == sorted(series.values("ours", "cpu_s"))


def test_programs_outside_the_run_are_named(tmp_path):
    rows = SampleRows()
    with running(SLEEP) as ours, running(SPIN) as other:
        processes = ProcessSampler(rows, tmp_path, ours, [])
        processes.search()
        name, deadline_s = psutil.Process(other).name()[:15], time.monotonic() + 30
        while (f"{OTHER}{name}", "cpu_s") not in rows.columns and time.monotonic() < deadline_s:
            time.sleep(0.2)
            processes.search()
    series = read(rows, tmp_path)
    assert series.values(f"{OTHER}{name}", "cpu_s")[-1] >= MIN_OTHER_S
    assert name_other_programs(series)


def test_incomplete_progress_files_and_ranks_of_other_hosts_are_not_sampled(tmp_path):
    progress_path(tmp_path, 0).write_text("{")
    is_rank(tmp_path, 1, os.getppid())  # the id of another process on this host
    rows = SampleRows()
    processes = ProcessSampler(rows, tmp_path, ROOT_PID, range(2))
    processes.sample()
    is_rank(tmp_path, 0, ROOT_PID)  # the file is read again
    processes.sample()
    series = read(rows, tmp_path)
    assert series.sources("process:") == ["process:0"] and len(series.values("process:0", "cpu_s")) == 1


def test_the_launching_program_and_agents_beside_this_one_are_ours(tmp_path, monkeypatch):
    """mpirun starts an agent for each rank; a person's shell has started others, which are none of the run."""

    def find_ours(launcher, agent):
        monkeypatch.delenv(exit_with_parent.LAUNCHER_VARIABLE, raising=False)
        if launcher is not None:
            monkeypatch.setenv(exit_with_parent.LAUNCHER_VARIABLE, launcher)
        processes = ProcessSampler(SampleRows(), tmp_path, agent, [0], with_agents=True)
        processes.sample()
        return processes.ours

    with running(CHILD) as starter, running(SLEEP) as beside:
        (agent,) = (child.pid for child in psutil.Process(starter).children())
        for launcher, ours in (("another:1", False), (f"{socket.gethostname()}:{beside}", True)):
            found = find_ours(launcher, agent)
            assert {starter, agent} <= found and (beside in found) == ours
        for launcher, ours in (("another:1", True), (None, False)):
            assert (beside in find_ours(launcher, starter)) == ours
