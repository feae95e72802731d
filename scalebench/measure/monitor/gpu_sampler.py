"""Samples of every GPU through NVML: what it refuses gives no row, and a lost GPU gives none any more. Layer 2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from scalebench.measure.monitor.time_series import Rows

# Values of nvml.h, fixed by its binary interface.
SM_CLOCK, MEM_CLOCK, DIE, SLOWDOWN, SENT, RECEIVED = 1, 2, 0, 1, 0, 1
NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 13, 15
NVLINK_SENT, NVLINK_RECEIVED, ALL_LINKS = 138, 139, 2**32 - 1  # KiB of data since the driver was loaded
# As nvidia-smi names them under clocks_event_reasons.
REASONS = {
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
THROTTLED, NO_REASON = "throttled_", "none"
Ask = Callable[..., Any]


class Gpus:
    """The GPUs that NVML shows, asked one after the other."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._refused: set[tuple[Any, ...]] = set()
        self._handles: dict[int, Any] = {}  # by NVML's index; those that are not lost
        self._slow_turn = 0
        self.missing: str | None = None  # why there is no NVML
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
        except Exception as error:
            self.missing, count = f"{type(error).__name__}: {error}", 0
        for index in range(count):
            handle = self._call(index, "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._handles[index] = handle
                limit_c = self._of(index)("nvmlDeviceGetTemperatureThreshold", SLOWDOWN)
                self._rows.add(time.time(), f"gpu{index}", "slowdown_temperature_c", limit_c)

    def __len__(self) -> int:
        return len(self._handles)

    def sample(self) -> None:
        """All that is told at once, milliseconds for each GPU."""
        for index in list(self._handles):
            at_s = time.time()
            for quantity, value in _quick(self._of(index)):
                self._rows.add(at_s, f"gpu{index}", quantity, value)

    def sample_slow(self) -> None:
        """What NVML itself has to count for 20 ms; of one GPU, whose turn it is."""
        if not self._handles:
            return
        index = sorted(self._handles)[self._slow_turn % len(self._handles)]
        self._slow_turn += 1
        for quantity, counter in (("pcie_sent_bytes_per_s", SENT), ("pcie_received_bytes_per_s", RECEIVED)):
            kilobytes = self._of(index)("nvmlDeviceGetPcieThroughput", counter)
            self._rows.add(time.time(), f"gpu{index}", quantity, _times(kilobytes, 1000))

    def processes(self) -> Iterator[tuple[int, list[int]]]:
        """Index and pids of the compute processes of each GPU that tells them."""
        for index in list(self._handles):
            found = self._of(index)("nvmlDeviceGetComputeRunningProcesses")
            if found is not None:
                yield index, [process.pid for process in found]

    def _of(self, index: int) -> Ask:
        def ask(name: str, *args: Any) -> Any:
            handle = self._handles.get(index)
            return None if handle is None else self._call(index, name, handle, *args)

        return ask

    def _call(self, index: int, name: str, *args: Any) -> Any:
        key = (index, name, *[arg for arg in args if isinstance(arg, int)])
        if key in self._refused:
            return None
        try:
            return getattr(self._nvml, name)(*args)
        except Exception as error:
            code = getattr(error, "value", FUNCTION_NOT_FOUND if isinstance(error, AttributeError) else None)
            if code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                self._refused.add(key)  # it will not be told later either
            elif code == GPU_IS_LOST:
                self._handles.pop(index, None)
                self._rows.add(time.time(), f"gpu{index}", "lost", 1.0)
            return None


def _quick(ask: Ask) -> Iterator[tuple[str, float | None]]:
    shares = ask("nvmlDeviceGetUtilizationRates")
    yield "util_share", _times(getattr(shares, "gpu", None), 0.01)
    yield "memory_util_share", _times(getattr(shares, "memory", None), 0.01)
    yield "memory_used_bytes", getattr(ask("nvmlDeviceGetMemoryInfo"), "used", None)
    yield "power_w", _times(ask("nvmlDeviceGetPowerUsage"), 0.001)
    yield "energy_j", _times(ask("nvmlDeviceGetTotalEnergyConsumption"), 0.001)
    yield "sm_clock_mhz", ask("nvmlDeviceGetClockInfo", SM_CLOCK)
    yield "mem_clock_mhz", ask("nvmlDeviceGetClockInfo", MEM_CLOCK)
    yield "temperature_c", ask("nvmlDeviceGetTemperature", DIE)
    for reason in _reasons(ask):
        yield f"{THROTTLED}{reason}", 1.0
    fields = ask("nvmlDeviceGetFieldValues", [(NVLINK_SENT, ALL_LINKS), (NVLINK_RECEIVED, ALL_LINKS)]) or []
    for quantity, field in zip(("nvlink_sent_bytes", "nvlink_received_bytes"), fields, strict=False):
        yield quantity, field.value.ullVal * 1024 if field.nvmlReturn == 0 else None


def _reasons(ask: Ask) -> list[str]:
    """What holds the clocks back now, in words; `none` where nothing does, nothing where NVML does not tell."""
    mask = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # its name in older drivers
    if mask is None:
        return []
    return [word for bit, word in REASONS.items() if mask & bit] or [NO_REASON]


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
