"""Samples of GPUs, through the real pynvml and a library of two made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.measure.monitor.gpu_sampler import GpuSampler
from scalebench.measure.monitor.time_series import SampleRows, TimeSeries, TimeWindow, read_series
from tests.nvml_stand_in import put_in


def sampled(rows: SampleRows, folder: Path) -> TimeSeries:
    rows.write(folder / "monitor.parquet")
    return read_series(folder / "monitor.parquet")


def test_everything_that_nvml_tells(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, REASONS_1=0x24, NVLINKS=2, SM_CLOCK_1=1200)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    assert len(gpus) == 2 and gpus.missing is None
    gpus.sample()
    for _ in range(2):
        gpus.sample_slow()  # one of them each time
    found = sampled(rows, tmp_path)
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


def test_an_unsupported_counter_has_no_row(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample()
    found = sampled(rows, tmp_path)
    assert len(found.values("gpu0", "energy_j")) == 2 and not found.values("gpu1", "energy_j")
    assert not found.sources("gpu0/nvlink")
    assert not [quantity for _, quantity in found.names if quantity.startswith("nvlink")]


def test_the_energy_counter_and_the_power_agree(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, nvml_library)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample()
    found = sampled(rows, tmp_path)
    first_s, last_s = found.times_s("gpu0", "energy_j")
    first_j, last_j = found.values("gpu0", "energy_j")
    gone_s = last_s - first_s  # of the row, a moment before the counter was read
    assert last_j - first_j == pytest.approx(250.0 * gone_s, abs=250.0 * 0.05 + 0.01)


def test_a_lost_gpu_is_recorded_once_and_its_rows_stop(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "lost"
    put_in(monkeypatch, nvml_library, LOST_FILE=lost)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    lost.touch()
    for _ in range(2):
        gpus.sample()
        gpus.sample_slow()
    found = sampled(rows, tmp_path)
    assert (len(gpus), found.values("gpu1", "lost"), found.values("gpu0", "lost")) == (1, [1.0], [])
    assert (len(found.values("gpu0", "power_w")), len(found.values("gpu1", "power_w"))) == (3, 1)
    assert [index for index, _ in gpus.compute_processes()] == [0]


def test_a_gpu_that_is_lost_from_the_start(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, LOST_AFTER=0)
    rows = SampleRows()
    assert len(GpuSampler(rows)) == 1
    assert sampled(rows, tmp_path).values("gpu1", "lost", TimeWindow(0.0, 2e9)) == [1.0]


def test_compute_processes(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, PROCESSES_1="17 18")
    assert list(GpuSampler(SampleRows()).compute_processes()) == [(0, []), (1, [17, 18])]


def test_without_a_driver_there_is_a_reason(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, INIT=9)
    rows = SampleRows()
    gpus = GpuSampler(rows)
    gpus.sample()
    gpus.sample_slow()
    assert (len(gpus), len(rows), list(gpus.compute_processes())) == (0, 0, [])
    assert gpus.missing is not None and "Driver Not Loaded" in gpus.missing
