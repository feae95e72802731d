"""The stand-in is what the tests of the monitor and of the machine lean on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.core.machine import gpus
from tests.nvml_stand_in import UUIDS, put_in, variables


def test_gpus_through_the_real_pynvml(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library, NVLINKS=2)
    found = gpus.detect_gpus()
    assert [gpu.uuid for gpu in found.gpus] == UUIDS
    assert found.topology == [["X", "NV2"], ["NV2", "X"]]
    assert (found.driver_version, found.cuda_driver_version) == ("550.54.15", "12.4")
    first = found.gpus[0]
    assert (first.name, first.memory_bytes, first.sm_clock_max_mhz, first.power_limit_w, first.pci_bus_id) == (
        "NVIDIA Stand-in 0", 40 * 2**30, 1410, 400.0, "00000000:0A:00.0",
    )  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert gpus.gpu_count() == 1


def test_a_gpu_is_lost_after_so_many_questions(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    put_in(monkeypatch, nvml_library, LOST_AFTER=0, PROCESSES_0="11 12", REASONS_0=0x24)
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [11, 12]
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0x24
    first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    assert first > 0
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [138])
    assert field.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    pynvml.nvmlShutdown()


def test_another_process_finds_it_by_its_name(nvml_library: Path) -> None:
    code = "from scalebench.core.machine import gpus; print(len(gpus.detect_gpus().gpus))"
    env = os.environ | variables(nvml_library)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "2"
