"""Samples of GPUs, through the real pynvml and a library of two made-up ones; of the machine, its files made up where
the figures must be known; and of real processes whose load is known."""

import os
import socket
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scalebench.core import exit_with_parent
from scalebench.core.json_files import write_json
from scalebench.core.machine import cpus
from scalebench.core.run_folder import RankProcesses, progress_path, rank_processes_path
from scalebench.measure.monitor import host_sampler
from scalebench.measure.monitor.gpu_sampler import GpuSampler
from scalebench.measure.monitor.host_sampler import HostSampler
from scalebench.measure.monitor.process_sampler import ProcessSampler
from scalebench.measure.monitor.time_series import SampleRows, TimeWindow, read_series
from scalebench.measure.progress import RankProgress
from tests.nvml_stand_in import put_in, read_table


def read(rows, folder):
    rows.write(folder / "monitor.parquet")
    return read_series(folder / "monitor.parquet")


def test_everything_that_nvml_tells(nvml_library, tmp_path, monkeypatch):
    put_in(monkeypatch, nvml_library, REASONS_1=0x24, NVLINKS=2, SM_CLOCK_1=1200)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    assert len(gpus) == 2 and gpus.missing is None
    gpus.sample()
    for _ in range(2):
        gpus.sample_slow()  # one of them each time
    found = read(rows, tmp_path)
    told = {f"{gpu}/{quantity}": found.values(gpu, quantity)[0] for gpu, quantity in found.names}
    counters = {name: told.pop(name) for name in list(told) if name.endswith(("_bytes", "energy_j")) and "nv" in name}
    energy_j = told.pop("gpu0/energy_j")
    assert energy_j > 0 and len(counters) == 4 and min(counters.values()) > 0
    for gpu, sm_mhz, watts, util in (("gpu0", 1380, 250.0, 0.8), ("gpu1", 1200, 150.0, 0.4)):
        assert told.pop(f"{gpu}/util_share") == pytest.approx(util)
        assert told.pop(f"{gpu}/memory_util_share") == pytest.approx(0.2)
        assert told.pop(f"{gpu}/power_w") == pytest.approx(watts)
        assert told.pop(f"{gpu}/sm_clock_mhz") == sm_mhz and told.pop(f"{gpu}/mem_clock_mhz") == 1215
        assert told.pop(f"{gpu}/temperature_c") == (60 if gpu == "gpu0" else 61)
        assert told.pop(f"{gpu}/slowdown_temperature_c") == 89
        assert told.pop(f"{gpu}/memory_used_bytes") == 2**30
        assert told.pop(f"{gpu}/pcie_sent_bytes_per_s") == 1_000_000
        assert told.pop(f"{gpu}/pcie_received_bytes_per_s") == 2_000_000
    assert sorted(told) == ["gpu0/throttled_none", "gpu1/throttled_sw_power_cap", "gpu1/throttled_sw_thermal_slowdown"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("field_mw", "power_w"),
    [([123456], 123.456), ([{"error": 3}], 250.0), ([{"error": 2}], 250.0), ([0], 250.0)],
    ids=["power of this moment", "not supported", "an older driver", "left as it was"],
)
def test_power_is_that_of_the_moment_where_nvml_has_it(field_mw, power_w, nvml_library, tmp_path, monkeypatch):
    put_in(monkeypatch, nvml_library, changes={"nvmlDeviceGetFieldValues 186": field_mw})
    rows = SampleRows()
    GpuSampler(rows).sample()
    assert read(rows, tmp_path).values("gpu0", "power_w") == [pytest.approx(power_w)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("table", "quantities"),
    [
        ("tesla_m60", "memory_used_bytes power_w temperature_c util_share memory_util_share"),
        ("gb10", "power_w temperature_c util_share memory_util_share"),
        ("mig_a100", "memory_used_bytes power_w temperature_c"),
        ("dgx1_v100", ""),
    ],
)
def test_a_quantity_that_a_card_does_not_support_has_no_row(table, quantities, nvml_library, tmp_path, monkeypatch):
    put_in(monkeypatch, nvml_library, table)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample_slow()
    assert len(gpus) == read_table(table)["gpus"]
    assert {name for gpu, name in (read(rows, tmp_path).names if len(rows) else []) if gpu == "gpu0"} == set(
        quantities.split()
    )


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
    from_the_start = SampleRows()
    assert len(GpuSampler(from_the_start)) == 1
    assert read(from_the_start, tmp_path).values("gpu1", "lost", TimeWindow(0.0, 2e9)) == [1.0]


def test_compute_processes(nvml_library, monkeypatch):
    put_in(monkeypatch, nvml_library, PROCESSES_1="17 18")
    assert list(GpuSampler(SampleRows()).compute_processes()) == [(0, []), (1, [17, 18])]


def test_without_a_driver_there_is_a_reason(nvml_library, monkeypatch):
    put_in(monkeypatch, nvml_library, INIT=9)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample_slow()
    assert (len(gpus), len(rows), list(gpus.compute_processes())) == (0, 0, [])
    assert gpus.missing is not None and "Driver Not Loaded" in gpus.missing


TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def root(monkeypatch, tmp_path):
    """An empty file system in place of /proc and /sys."""
    monkeypatch.setattr(host_sampler, "_ROOT", tmp_path / "root")
    monkeypatch.setattr(cpus, "SYSTEM_ROOT", tmp_path / "root")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2})
    (tmp_path / "root" / "proc").mkdir(parents=True)
    return tmp_path / "root"


def sampled_host(folder):
    rows = SampleRows()
    HostSampler(rows).sample()
    return read(rows, folder)


STAT = "usage_usec 9\nnr_periods 80\nnr_throttled 7\nthrottled_usec 5\n"
V1_FILES = {"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": STAT}


def test_the_cores_that_we_may_use(root, tmp_path):
    cores = "\n".join(f"cpu{n} {100 * n} {n} {10 * n} 7000 9 {4 * n} {2 * n} {n} 0 0" for n in range(4))
    (root / "proc/stat").write_text(f"cpu  9 9 9 9 9 9 9 9 0 0\n{cores}\nintr 1 2 3\n")
    found = sampled_host(tmp_path)
    assert found.values("cpu", "cores") == [2.0]
    assert found.values("cpu", "programs_s") == [pytest.approx(3 * 111 / TICKS)]
    assert found.values("cpu", "busy_s") == [pytest.approx(3 * 117 / TICKS)]
    assert found.values("cpu", "stolen_s") == [pytest.approx(3 / TICKS)]
    assert cpus.read_cpu_times().busy_s == pytest.approx(3 * 118 / TICKS)
    assert cpus.read_cpu_times().idle_s == pytest.approx(2 * 7009 / TICKS)


QUOTAS = {
    "version 2": ("0::/a\n", {"cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/cpu.stat": STAT}),
    "version 2, of the folder above": ("0::/a\n", {"cpu.max": "5 10", "cpu.stat": STAT, "a/cpu.max": "9 10"}),
    "version 1": ("4:cpu,cpuacct:/\n", {f"cpu,cpuacct/{name}": text for name, text in V1_FILES.items()}),
    "no limit": ("0::/\n", {"cpu.max": "max 100000", "cpu.stat": STAT}),
    "no counts": ("0::/\n", {"cpu.max": "150000 100000", "cpu.stat": "usage_usec 5\n"}),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_how_often_the_quota_of_cpu_time_was_used_up(case, root, tmp_path):
    cgroup, files = QUOTAS[case]
    for name, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = sampled_host(tmp_path)
    counts = [found.values("cpu", name) for name in ("quota_periods", "quota_periods_used_up")]
    assert counts == ([[], []] if case.startswith("no") else [[80.0], [7.0]])


@pytest.mark.parametrize("text", ["", "cpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n", "cpu1 a b c\n"])
def test_cores_without_times_have_no_row(text, root, tmp_path):
    (root / "proc/stat").write_text(text)
    found = sampled_host(tmp_path)
    assert [quantity for source, quantity in found.names if source == "cpu"] == ["cores"]
    assert found.values("memory", "available_bytes")[0] > 0  # and nothing else is kept from being told


def test_infiniband_counts_in_fours(root, tmp_path):
    for port, sent in (("1", "1000\n"), ("2", "N/A\n")):
        counters = root / "sys/class/infiniband/mlx5_0/ports" / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(sent)
        (counters / "port_rcv_data").write_text("50\n")
    found = sampled_host(tmp_path)
    assert found.values("infiniband:mlx5_0/1", "sent_bytes") == [4000.0]
    assert found.values("infiniband:mlx5_0/1", "received_bytes") == [200.0]
    assert found.values("infiniband:mlx5_0/2", "received_bytes") == [200.0]
    assert not found.values("infiniband:mlx5_0/2", "sent_bytes")


def test_the_loopback_of_a_run_in_a_network_of_its_own(root, tmp_path):
    """The machine's own counts other programs, and none of the run's bytes."""
    (root / "proc/7/net").mkdir(parents=True)
    counters = "3000 9 0 0 0 0 0 0 2000 8 0 0 0 0 0 0"
    (root / "proc/7/net/dev").write_text(f"Inter-|\n face |bytes\n  eth0: {counters}\n    lo: {counters}\n")
    for pid, sent in ((7, [2000.0]), (None, []), (8, [])):  # there is none before the first rank, or after the last one
        rows = SampleRows()
        HostSampler(rows, lambda pid=pid: pid).sample()
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
HOLD = "held = b'x' * 200_000_000\nprint(1, flush=True)\nimport time; time.sleep(60)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


@contextmanager
def running(code):
    """Yield the process id of a Python that runs `code` and has printed that it is ready."""
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
    with running(SPIN) as spinning, running("print(1, flush=True)\nimport time; time.sleep(60)") as idle:
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
    spun_s = series.counter_growth("process:0", "cpu_s", window)
    assert spun_s == pytest.approx(end_s - begin_s, rel=0.3, abs=0.1)
    assert 0.1 < spun_s <= window.seconds * 1.1
    assert series.counter_growth("process:1", "cpu_s", window) <= 0.05
    assert series.counter_growth("ours", "cpu_s", window) >= spun_s - 1e-6  # this test is part of it


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


def test_ranks_with_agents_are_all_ours(tmp_path, monkeypatch):
    """On a node each rank has an agent; process ids of other hosts, and ranks of other nodes, do not count."""
    monkeypatch.delenv(exit_with_parent.LAUNCHER_VARIABLE, raising=False)
    rows = SampleRows()
    with running(SPIN) as first, running(SPIN) as second, running(SPIN) as stranger:
        processes = ProcessSampler(rows, tmp_path, first, [0, 1], with_agents=True)
        processes.sample()
        assert {first} <= processes.ours and not {second, stranger} & processes.ours
        for rank, host, pid in ((1, socket.gethostname(), second), (2, socket.gethostname(), stranger)):
            write_json(rank_processes_path(tmp_path, rank), RankProcesses(host, pid, pid))
            is_rank(tmp_path, rank, pid)
        write_json(rank_processes_path(tmp_path, 0), RankProcesses("another", stranger, stranger))
        processes.sample()
        assert {first, second} <= processes.ours and stranger not in processes.ours
        time.sleep(0.1)
        processes.sample()
    assert read(rows, tmp_path).sources("process:") == ["process:1"]


def test_the_launching_program_is_ours_if_it_is_on_this_host(tmp_path, monkeypatch):
    with running(SPIN) as rank_0, running("print(1, flush=True)\nimport time; time.sleep(60)") as launched:
        for host, ours in ((socket.gethostname(), True), ("another", False)):
            monkeypatch.setenv(exit_with_parent.LAUNCHER_VARIABLE, f"{host}:{launched}")
            processes = ProcessSampler(SampleRows(), tmp_path, rank_0, [0], with_agents=True)
            processes.sample()
            assert (launched in processes.ours) == ours and rank_0 in processes.ours


def test_the_energy_counter_agrees_with_the_power_and_an_unsupported_one_has_no_row(
    nvml_library, tmp_path, monkeypatch
):
    put_in(monkeypatch, nvml_library)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample()
    series = read(rows, tmp_path)
    first_s, last_s = series.times_s("gpu0", "energy_j")  # of the row, a moment before the counter was read
    first_j, last_j = series.values("gpu0", "energy_j")
    assert last_j - first_j == pytest.approx(250.0 * (last_s - first_s), abs=250.0 * 0.05 + 0.01)
    assert not series.values("gpu1", "energy_j")
    assert not [quantity for _, quantity in series.names if quantity.startswith("nvlink")]
