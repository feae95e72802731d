"""The figures of real processes whose load is known."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalebench.core import exit_with_parent
from scalebench.core.json_files import write_json
from scalebench.core.run_folder import RankProcesses, progress_path, rank_processes_path
from scalebench.measure.monitor.process_sampler import ProcessSampler
from scalebench.measure.monitor.time_series import SampleRows, TimeSeries, TimeWindow, read_series
from scalebench.measure.progress import RankProgress

ROOT_PID = os.getpid()
SPIN = "print(1, flush=True)\nwhile True: pass"
HOLD = "held = b'x' * 200_000_000\nprint(1, flush=True)\nimport time; time.sleep(60)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


@contextmanager
def running(code: str) -> Iterator[int]:
    """Yield the process id of a Python that runs `code` and has printed that it is ready."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def is_rank(folder: Path, rank: int, pid: int) -> None:
    write_json(progress_path(folder, rank), RankProgress(rank, pid, "measure", time.time()))


def read(rows: SampleRows, folder: Path) -> TimeSeries:
    rows.write(folder / "monitor.parquet")
    return read_series(folder / "monitor.parquet")


def test_the_time_of_a_spinning_rank_is_that_of_the_kernel(tmp_path: Path) -> None:
    """On a busy machine it may get less than a core: compared with the count of the kernel."""
    import psutil

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
def test_memory_of_a_rank_includes_its_children(code: str, tmp_path: Path) -> None:
    rows = SampleRows()
    processes = ProcessSampler(rows, tmp_path, ROOT_PID, range(1))
    with running(code) as pid:
        is_rank(tmp_path, 0, pid)
        processes.sample()
    series = read(rows, tmp_path)
    (anonymous,), (resident,) = (series.values("process:0", name) for name in ("rss_anon_bytes", "rss_bytes"))
    assert 200e6 < anonymous < 300e6
    assert anonymous < resident < 400e6


def test_a_rank_of_another_host_is_not_sampled(tmp_path: Path) -> None:
    rows = SampleRows()
    is_rank(tmp_path, 0, os.getppid())  # the id of another process on this host
    ProcessSampler(rows, tmp_path, ROOT_PID, range(1)).sample()
    assert not read(rows, tmp_path).sources("process:")


def test_processes_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_incomplete_progress_file_is_read_again(tmp_path: Path) -> None:
    progress_path(tmp_path, 0).write_text("{")
    rows = SampleRows()
    processes = ProcessSampler(rows, tmp_path, ROOT_PID, range(1))
    processes.sample()
    is_rank(tmp_path, 0, ROOT_PID)
    processes.sample()
    assert len(read(rows, tmp_path).values("process:0", "cpu_s")) == 1


def test_ranks_with_agents_are_all_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    rows.write(tmp_path / "series")
    assert read_series(tmp_path / "series").sources("process:") == ["process:1"]


def test_the_launching_program_is_ours_if_it_is_on_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(SPIN) as rank_0, running("print(1, flush=True)\nimport time; time.sleep(60)") as launched:
        for host, ours in ((socket.gethostname(), True), ("another", False)):
            monkeypatch.setenv(exit_with_parent.LAUNCHER_VARIABLE, f"{host}:{launched}")
            processes = ProcessSampler(SampleRows(), tmp_path, rank_0, [0], with_agents=True)
            processes.sample()
            assert (launched in processes.ours) == ours and rank_0 in processes.ours
