"""The stand-in is what the tests of the monitor and of the machine lean on."""

import os
import subprocess
import sys

import pytest

from tests.nvml_stand_in import put_in, variables


def test_a_gpu_is_lost_after_so_many_questions(nvml_library, monkeypatch):
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


def test_another_process_finds_it_by_its_name(nvml_library):
    code = "from scalebench.core.machine import gpus; print(len(gpus.detect_gpus().gpus))"
    env = os.environ | variables(nvml_library)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "2"
