"""Samples of every GPU through NVML: a query that it refuses gives no row, and a lost GPU gives none any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from scalebench.core.machine.gpus import MEM_CLOCK, SLOWDOWN, SM_CLOCK, NvmlQuery, open_nvml
from scalebench.measure.monitor.time_series import SampleRows

# Values of nvml.h, fixed by its binary interface.
DIE, SENT, RECEIVED = 0, 0, 1
NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 13, 15
NVLINK_SENT, NVLINK_RECEIVED, ALL_LINKS = 138, 139, 2**32 - 1  # KiB of data since the driver was loaded
POWER_INSTANT, GPU_SCOPE = 186, 0  # mW of the GPU, without the CPU that some modules hold as well
FIELDS = [(POWER_INSTANT, GPU_SCOPE), (NVLINK_SENT, ALL_LINKS), (NVLINK_RECEIVED, ALL_LINKS)]
UNSIGNED_INT = 1
# As nvidia-smi names them under clocks_event_reasons.
THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
THROTTLED_PREFIX, NO_REASON, IDLE_REASON = "throttled_", "none", "gpu_idle"


class GpuSampler:
    """Samples the GPUs that NVML shows, one after the other."""

    def __init__(self, rows: SampleRows) -> None:
        """Open NVML."""
        self._rows = rows
        self._refused: set[tuple[Any, ...]] = set()
        self._handles: dict[int, Any] = {}  # by NVML's index; those that are not lost
        self._slow_count = 0
        self.missing: str | None = None  # why there is no NVML
        try:
            self._nvml = open_nvml()
            count = self._nvml.nvmlDeviceGetCount()
        except Exception as error:
            self.missing, count = f"{type(error).__name__}: {error}", 0
        for index in range(count):
            handle = self._call(index, "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._handles[index] = handle
                limit_c = self._query(index)("nvmlDeviceGetTemperatureThreshold", SLOWDOWN)
                self._rows.add(time.time(), f"gpu{index}", "slowdown_temperature_c", limit_c)

    def __len__(self) -> int:
        return len(self._handles)

    def sample(self) -> None:
        """Sample the quantities that NVML returns at once, in milliseconds for each GPU."""
        for index in list(self._handles):
            at_s = time.time()
            for quantity, value in _query_quick(self._query(index)):
                self._rows.add(at_s, f"gpu{index}", quantity, value)

    def sample_slow(self) -> None:
        """Sample the quantities that NVML itself has to count for 20 ms, of one GPU at a time, in turn."""
        if not self._handles:
            return
        index = sorted(self._handles)[self._slow_count % len(self._handles)]
        self._slow_count += 1
        for quantity, counter in (("pcie_sent_bytes_per_s", SENT), ("pcie_received_bytes_per_s", RECEIVED)):
            kilobytes = self._query(index)("nvmlDeviceGetPcieThroughput", counter)
            self._rows.add(time.time(), f"gpu{index}", quantity, _scale(kilobytes, 1000))

    def compute_processes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the index of each GPU that lists its compute processes, and their process ids."""
        for index in list(self._handles):
            processes = self._query(index)("nvmlDeviceGetComputeRunningProcesses")
            if processes is not None:
                yield index, [process.pid for process in processes]

    def _query(self, index: int) -> NvmlQuery:
        def query(name: str, *args: Any) -> Any:
            handle = self._handles.get(index)
            return None if handle is None else self._call(index, name, handle, *args)

        return query

    def _call(self, index: int, name: str, *args: Any) -> Any:
        key = (index, name, *[arg for arg in args if isinstance(arg, int)])
        if key in self._refused:
            return None
        try:
            return getattr(self._nvml, name)(*args)
        except Exception as error:
            code = getattr(error, "value", FUNCTION_NOT_FOUND if isinstance(error, AttributeError) else None)
            if code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                self._refused.add(key)  # it will be refused later, too
            elif code == GPU_IS_LOST:
                self._handles.pop(index, None)
                self._rows.add(time.time(), f"gpu{index}", "lost", 1.0)
            return None


def _query_quick(query: NvmlQuery) -> Iterator[tuple[str, float | None]]:
    shares = query("nvmlDeviceGetUtilizationRates")
    yield "util_share", _scale(getattr(shares, "gpu", None), 0.01)
    yield "memory_util_share", _scale(getattr(shares, "memory", None), 0.01)
    yield "memory_used_bytes", getattr(query("nvmlDeviceGetMemoryInfo"), "used", None)
    yield "energy_j", _scale(query("nvmlDeviceGetTotalEnergyConsumption"), 0.001)
    yield "sm_clock_mhz", query("nvmlDeviceGetClockInfo", SM_CLOCK)
    yield "mem_clock_mhz", query("nvmlDeviceGetClockInfo", MEM_CLOCK)
    yield "temperature_c", query("nvmlDeviceGetTemperature", DIE)
    # NVML tells what limits the clocks now, or there is no row. Older drivers have the second name.
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        if (mask := query(name)) is not None:
            reasons = [reason for bit, reason in THROTTLE_REASONS.items() if mask & bit] or [NO_REASON]
            yield from ((f"{THROTTLED_PREFIX}{reason}", 1.0) for reason in reasons)
            break
    values = query("nvmlDeviceGetFieldValues", FIELDS) or [None] * len(FIELDS)
    instant_mw, sent_kib, received_kib = map(_read_field, values)
    # PowerUsage is the mean of a second since Ampere, but for A100. A GPU needs some power: 0 is not a reading.
    yield "power_w", _scale(instant_mw or query("nvmlDeviceGetPowerUsage"), 0.001)
    yield "nvlink_sent_bytes", _scale(sent_kib, 1024)
    yield "nvlink_received_bytes", _scale(received_kib, 1024)


def _read_field(field: Any) -> int | None:
    """Return the value of a field, or None where NVML refuses it. Of a short one the upper half is undefined."""
    if field is None or field.nvmlReturn != 0:
        return None
    return int(field.value.uiVal if field.valueType == UNSIGNED_INT else field.value.ullVal)


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
