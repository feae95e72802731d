"""Samples of the machine, its files made up where the figures must be known."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import psutil
import pytest

from scalebench.measure.monitor import host_sampler
from scalebench.measure.monitor.host_sampler import HostSampler
from scalebench.measure.monitor.time_series import SampleRows, TimeSeries, read_series

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty file system in place of /proc and /sys."""
    monkeypatch.setattr(host_sampler, "_ROOT", tmp_path / "root")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2})
    (tmp_path / "root" / "proc").mkdir(parents=True)
    return tmp_path / "root"


def sampled(folder: Path) -> TimeSeries:
    rows = SampleRows()
    HostSampler(rows).sample()
    rows.write(folder / "monitor.parquet")
    return read_series(folder / "monitor.parquet")


def test_the_cores_that_we_may_use(root: Path, tmp_path: Path) -> None:
    cores = "\n".join(f"cpu{n} {100 * n} {n} {10 * n} 7000 9 {4 * n} {2 * n} {n} 0 0" for n in range(4))
    (root / "proc/stat").write_text(f"cpu  9 9 9 9 9 9 9 9 0 0\n{cores}\nintr 1 2 3\n")
    found = sampled(tmp_path)
    assert found.values("cpu", "cores") == [2.0]
    assert found.values("cpu", "programs_s") == [pytest.approx(3 * 111 / TICKS)]
    assert found.values("cpu", "busy_s") == [pytest.approx(3 * 117 / TICKS)]
    assert found.values("cpu", "stolen_s") == [pytest.approx(3 / TICKS)]


@pytest.mark.parametrize("text", ["", "cpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n", "cpu1 a b c\n"])
def test_cores_without_times_have_no_row(text: str, root: Path, tmp_path: Path) -> None:
    (root / "proc/stat").write_text(text)
    found = sampled(tmp_path)
    assert [quantity for source, quantity in found.names if source == "cpu"] == ["cores"]
    assert found.values("memory", "available_bytes")[0] > 0  # and nothing else is kept from being told


def test_infiniband_counts_in_fours(root: Path, tmp_path: Path) -> None:
    for port, sent in (("1", "1000\n"), ("2", "N/A\n")):
        counters = root / "sys/class/infiniband/mlx5_0/ports" / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(sent)
        (counters / "port_rcv_data").write_text("50\n")
    found = sampled(tmp_path)
    assert found.values("infiniband:mlx5_0/1", "sent_bytes") == [4000.0]
    assert found.values("infiniband:mlx5_0/1", "received_bytes") == [200.0]
    assert found.values("infiniband:mlx5_0/2", "received_bytes") == [200.0]
    assert not found.values("infiniband:mlx5_0/2", "sent_bytes")


def test_this_machine(tmp_path: Path) -> None:
    found = sampled(tmp_path)
    assert found.values("cpu", "cores") == [len(os.sched_getaffinity(0))]
    assert 0 < found.values("memory", "available_bytes")[0] < 2**50
    assert not found.sources("infiniband:") or Path("/sys/class/infiniband").exists()


def test_swap_counters_that_psutil_did_not_find_are_not_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = psutil.swap_memory()

    def none() -> object:
        warnings.warn("no counters", RuntimeWarning, stacklevel=1)
        return found

    monkeypatch.setattr(psutil, "swap_memory", none)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a program, where a warning is no error
        assert not sampled(tmp_path).sources("swap")
