"""Flags for conditions on the machine that may have disturbed a run's figures; docs/reference/results.md lists them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import DeviceMonitorRecord
from scalebench.measure.monitor.gpu_sampler import IDLE_REASON, NO_REASON, THROTTLE_REASONS, THROTTLED_PREFIX
from scalebench.measure.monitor.time_series import TimeSeries, TimeWindow

if TYPE_CHECKING:
    from scalebench.measure.monitor.summary import NodeMonitor

# For other programs, over the whole measured phase: daemons and kernel threads use a little of any machine, more of a
# larger one.
MAX_MEAN_OTHER_CORES, MAX_MEAN_OTHER_SHARE = 0.1, 0.01
MIN_BUSY_WINDOW_S = (
    1.0  # the kernel counts in hundredths of a second: in a shorter window, two of them would set the flag
)
MAX_USED_UP_SHARE = 0.01  # of the periods of a CPU quota: each stops the run for up to a tenth of a second
MAX_SWAPPED_BYTES = 2**20  # an idle machine moves a few pages, too
MAX_THROTTLED_SHARE = 0.05  # of the samples: boost clocks find their limit by single ones
MAX_CLOCK_DIFFERENCE = 0.02  # beyond the jitter of boost clocks; the study's slow cards were 5 % apart
# Cards of one box that run at their power limit all find clocks of their own.
MAX_CAPPED_CLOCK_DIFFERENCE = 0.05
HOT_MARGIN_C = 5.0  # below the temperature at which the card slows down
# Idling, clocks that somebody set, or the power limit, at which a loaded data centre GPU always runs: no sign of a
# device in trouble.
POWER_CAP = "sw_power_cap"
HARMLESS_REASONS = {
    *(NO_REASON, IDLE_REASON, POWER_CAP, "applications_clocks_setting", "sync_boost", "display_clock_setting")
}
HEAT_REASONS = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}


def detect_flags(
    series: TimeSeries, window: TimeWindow | None, warmup_s: float | None, node: NodeMonitor, gpus: Sequence[Gpu]
) -> list[str]:
    """Return the flags of a run that used `gpus`; `warmup_s` is the time of its first step, `window` its measured
    phase."""
    used = [f"gpu{gpu.index}" for gpu in gpus]
    flags = {
        "foreign_process": any(_has_foreign_process(series, gpu, window) for gpu in used),
        "hot_at_start": any(_is_hot(series, gpu, warmup_s) for gpu in used),
        "gpu_lost": any(series.times_s(gpu, "lost") for gpu in used),
        "unequal_clocks": has_unequal_clocks(gpus, node.devices),
    }
    if window is not None:
        others, cores = node.figures["cpu_cores_others_mean"] or 0.0, node.figures["cores"] or math.inf
        is_busy = others > MAX_MEAN_OTHER_CORES + MAX_MEAN_OTHER_SHARE * cores
        flags["busy_machine"] = is_busy and window.seconds >= MIN_BUSY_WINDOW_S
        periods, used_up = (series.growth("cpu", f"quota_periods{part}", window) for part in ("", "_used_up"))
        flags["quota_used_up"] = (used_up or 0.0) > MAX_USED_UP_SHARE * (periods or math.inf)
        flags["throttled"] = any(_is_throttled(series, gpu, window) for gpu in used)
        swapped_bytes = sum(node.figures[f"swap_{way}_bytes"] or 0.0 for way in ("in", "out"))
        flags["swapping"] = swapped_bytes > MAX_SWAPPED_BYTES
    return [name for name, is_set in flags.items() if is_set]


def _has_foreign_process(series: TimeSeries, gpu: str, window: TimeWindow | None) -> bool:
    """Return whether another program computed on this GPU, before or during the measured phase."""
    until = None if window is None else TimeWindow(0.0, window.end_s)
    return any(series.values(gpu, "foreign_processes", until))


def _is_hot(series: TimeSeries, gpu: str, warmup_s: float | None) -> bool:
    """Return whether this GPU was hot, or its clocks limited for heat, before the first step of the run."""
    if warmup_s is None:
        return False
    before = TimeWindow(0.0, warmup_s)
    limit_c = series.first(gpu, "slowdown_temperature_c") or float("inf")
    temperatures = series.values(gpu, "temperature_c", before)
    is_limited = any(series.values(gpu, f"{THROTTLED_PREFIX}{reason}", before) for reason in HEAT_REASONS)
    return is_limited or any(value >= limit_c - HOT_MARGIN_C for value in temperatures)


def _is_throttled(series: TimeSeries, gpu: str, window: TimeWindow) -> bool:
    all_s, limited_s = set(), set()
    for reason in (*THROTTLE_REASONS.values(), NO_REASON):
        times_s = series.times_s(gpu, f"{THROTTLED_PREFIX}{reason}", window)
        all_s.update(times_s)
        limited_s.update(times_s if reason not in HARMLESS_REASONS else [])
    return len(limited_s) > MAX_THROTTLED_SHARE * len(all_s)


def has_unequal_clocks(gpus: Sequence[Gpu], devices: Sequence[DeviceMonitorRecord]) -> bool:
    """Return whether the devices' mean clocks differ, or their maximum clocks."""
    are_capped = bool(devices) and all(POWER_CAP in (device.throttle_reasons or []) for device in devices)
    core_limit = MAX_CAPPED_CLOCK_DIFFERENCE if are_capped else MAX_CLOCK_DIFFERENCE
    return (
        _differ([device.sm_clock_mhz_mean for device in devices], core_limit)
        or _differ([device.mem_clock_mhz_mean for device in devices])
        or _differ([gpu.sm_clock_max_mhz for gpu in gpus])
        or _differ([gpu.mem_clock_max_mhz for gpu in gpus])
    )


def _differ(values: Sequence[float | None], limit: float = MAX_CLOCK_DIFFERENCE) -> bool:
    mhz = [value for value in values if value]
    return len(mhz) > 1 and max(mhz) > (1 + limit) * min(mhz)
