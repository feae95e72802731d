"""What of a run's series a reader of its row must know, as flags; docs/record.md lists them. Layer 2."""

from __future__ import annotations

from collections.abc import Sequence

from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import DeviceMonitor, Monitor
from scalebench.measure.monitor.gpu_sampler import NO_REASON, REASONS, THROTTLED
from scalebench.measure.monitor.summary import IDLE
from scalebench.measure.monitor.time_series import Series, Window

# Other programs: daemons and kernel threads take some of any machine, more of a larger one.
BUSY_CORES, BUSY_SHARE = 0.1, 0.01
BUSY_S = 1.0  # the kernel counts in hundredths of a second: in less time, two of them would be a flag
SWAPPED_BYTES = 2**20  # a quiet machine, too, moves a few pages
THROTTLED_SHARE = 0.05  # of the samples: single ones are how boost clocks find their limit
CLOCK_DIFFERENCE = 0.02  # beyond the jitter of boost clocks; the study's slow cards were 5 % apart
HOT_MARGIN_C = 5.0  # below the temperature at which the card slows itself down
# Nothing to do, or clocks that somebody chose: no sign of a device in trouble.
HARMLESS = {NO_REASON, IDLE, "applications_clocks_setting", "sync_boost", "display_clock_setting"}
HOT = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}


def flags(
    series: Series, window: Window | None, warmup_s: float | None, monitor: Monitor, gpus: list[Gpu]
) -> list[str]:
    """The flags of a run that used `gpus`; `warmup_s` is when its updates began, `window` its measured phase."""
    used = [f"gpu{gpu.index}" for gpu in gpus]
    found = {
        "foreign_process": any(_foreign(series, gpu, window) for gpu in used),
        "hot_at_start": any(_hot(series, gpu, warmup_s) for gpu in used),
        "gpu_lost": any(series.times_s(gpu, "lost") for gpu in used),
        "busy_machine": window is not None and _busy(series, window, monitor),
        "throttled": window is not None and any(_throttled(series, gpu, window) for gpu in used),
        "unequal_clocks": unequal(gpus, monitor.devices),
        "swapping": (monitor.swap_in_bytes or 0) + (monitor.swap_out_bytes or 0) > SWAPPED_BYTES,
    }
    return [name for name, there in found.items() if there]


def _foreign(series: Series, gpu: str, window: Window | None) -> bool:
    """Return whether another program computed on this GPU, before or during the measured phase."""
    until = None if window is None else Window(0.0, window.end_s)
    return any(series.values(gpu, "foreign_processes", until))


def _hot(series: Series, gpu: str, warmup_s: float | None) -> bool:
    """Return whether this GPU was hot, or held back for heat, before the run gave it anything to do."""
    if warmup_s is None:
        return False
    before = Window(0.0, warmup_s)
    limit_c = next(iter(series.values(gpu, "slowdown_temperature_c")), float("inf"))
    temperatures = series.values(gpu, "temperature_c", before)
    held = any(series.values(gpu, f"{THROTTLED}{reason}", before) for reason in HOT)
    return held or any(value >= limit_c - HOT_MARGIN_C for value in temperatures)


def _throttled(series: Series, gpu: str, window: Window) -> bool:
    seen, held = set(), set()
    for reason in (*REASONS.values(), NO_REASON):
        times_s = series.times_s(gpu, f"{THROTTLED}{reason}", window)
        seen.update(times_s)
        held.update(times_s if reason not in HARMLESS else [])
    return len(held) > THROTTLED_SHARE * len(seen)


def _busy(series: Series, window: Window, monitor: Monitor) -> bool:
    cores = next(iter(series.values("cpu", "cores")), None)
    if monitor.cpu_cores_others_mean is None or cores is None or window.seconds < BUSY_S:
        return False
    return monitor.cpu_cores_others_mean > BUSY_CORES + BUSY_SHARE * cores


def unequal(gpus: Sequence[Gpu], devices: Sequence[DeviceMonitor]) -> bool:
    """Return whether the devices' mean clocks differ, or those that they could reach."""
    return any(
        _apart(values)
        for values in (
            [device.sm_clock_mhz_mean for device in devices],
            [device.mem_clock_mhz_mean for device in devices],
            [gpu.sm_clock_max_mhz for gpu in gpus],
            [gpu.mem_clock_max_mhz for gpu in gpus],
        )
    )


def _apart(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value]
    return len(known) > 1 and max(known) > (1 + CLOCK_DIFFERENCE) * min(known)
