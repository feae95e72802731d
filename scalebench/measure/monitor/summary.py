"""The figures of a run's record from its time series, cut to the measured phase: docs/reference/results.md."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from scalebench.core.result import DeviceMonitorRecord, MonitorRecord, RankRecord
from scalebench.core.run_folder import MONITOR_FILE
from scalebench.measure.monitor.gpu_sampler import NO_REASON, THROTTLED_PREFIX
from scalebench.measure.monitor.process_sampler import OTHER
from scalebench.measure.monitor.time_series import Reduction, TimeSeries, TimeWindow, mean

IDLE_REASON = "gpu_idle"
LOOPBACK = "net:lo"
# Figures of one GPU: the quantity in its series, and what is taken of it over the window.
DEVICE_FIGURES: dict[str, tuple[str, Reduction]] = {
    "gpu_util_mean": ("util_share", mean),
    "memory_util_mean": ("memory_util_share", mean),
    "gpu_power_w_mean": ("power_w", mean),
    "sm_clock_mhz_min": ("sm_clock_mhz", min),
    "sm_clock_mhz_mean": ("sm_clock_mhz", mean),
    "mem_clock_mhz_min": ("mem_clock_mhz", min),
    "mem_clock_mhz_mean": ("mem_clock_mhz", mean),
    "temperature_c_max": ("temperature_c", max),
    "pcie_sent_bytes_per_s": ("pcie_sent_bytes_per_s", mean),
    "pcie_received_bytes_per_s": ("pcie_received_bytes_per_s", mean),
}
# Figures of all GPUs together: that of each, and how they are combined.
COMBINED_FIGURES: dict[str, tuple[str, Reduction]] = {
    "gpu_util_mean": ("gpu_util_mean", mean),
    "gpu_power_w_mean": ("gpu_power_w_mean", sum),
    "energy_j": ("energy_j", sum),
    "sm_clock_mhz_min": ("sm_clock_mhz_min", min),
    "sm_clock_mhz_mean": ("sm_clock_mhz_mean", mean),
    "mem_clock_mhz_min": ("mem_clock_mhz_min", min),
    "mem_clock_mhz_mean": ("mem_clock_mhz_mean", mean),
    "gpu_temperature_c_max": ("temperature_c_max", max),
}
# Figures of the machine that are counters per second: source, or the beginning of those that are added, and quantity.
TRAFFIC = {
    "net_sent_bytes_per_s": ("net:", "sent_bytes"),  # but for the loopback
    "net_received_bytes_per_s": ("net:", "received_bytes"),
    "loopback_bytes_per_s": (LOOPBACK, "sent_bytes"),
    "infiniband_sent_bytes_per_s": ("infiniband:", "sent_bytes"),
    "infiniband_received_bytes_per_s": ("infiniband:", "received_bytes"),
    "disk_read_bytes_per_s": ("disk", "read_bytes"),
    "disk_written_bytes_per_s": ("disk", "written_bytes"),
}
MAX_OTHER_PROGRAMS = 3  # that a record names, each with at least a tenth of the time of the first


def measured_window(rank: RankRecord | None, resumed_s: Sequence[float] = ()) -> TimeWindow | None:
    """Return the window from the start of the measured phase to that of the next one, by this rank's marks, without the
    evaluations during a training; None where nothing was measured.

    Of a run that took turns these are its slots, reduced to those for which the monitor resumed at one of `resumed_s`.
    """
    begin_s = rank.marks_s.get("measure") if rank is not None else None
    if rank is None or begin_s is None:
        return None
    end_s = min((mark_s for mark_s in rank.marks_s.values() if mark_s > begin_s), default=None)
    if slots := _slots(rank):
        return _join_slots(slots, resumed_s)
    evaluations = tuple((point.at_s, point.at_s + point.evaluate_s) for point in rank.curve)
    return None if end_s is None else TimeWindow(begin_s, end_s, evaluations)


def _slots(rank: RankRecord) -> list[tuple[float, float]]:
    """Return (begin, end) of what each slot measured, in seconds since the epoch; an empty list without turns."""
    blocks = zip(rank.block_rounds, rank.block_started_at_s, rank.block_s, strict=False)
    slots = [list(slot) for _, slot in itertools.groupby(blocks, key=lambda block: block[0])]
    return [(slot[0][1], slot[-1][1] + slot[-1][2]) for slot in slots]


def _join_slots(slots: Sequence[tuple[float, float]], resumed_s: Sequence[float]) -> TimeWindow:
    """Return the window of the slots that were sampled: of those the monitor resumed after the end of the slot before
    and before their own end. If there are none, it is the window of all slots."""
    ends_s = [end_s for _, end_s in slots]
    numbers = {bisect.bisect_left(ends_s, time_s) for time_s in resumed_s}
    sampled = [slot for number, slot in enumerate(slots) if number in numbers] or slots
    gaps = tuple((before[1], after[0]) for before, after in itertools.pairwise(sampled))
    all_s, sampled_s = (sum(end_s - begin_s for begin_s, end_s in part) for part in (slots, sampled))
    return TimeWindow(sampled[0][0], sampled[-1][1], gaps, all_s / sampled_s if sampled_s > 0 else 1.0)


def summarize_monitor(
    series: TimeSeries, window: TimeWindow, used: Sequence[int], node: int | None = None
) -> MonitorRecord:
    """Return the figures of the GPUs `used` (by NVML's index) and of the machine in `window`; `node` is its
    number among several."""

    def growth(prefix: str, quantity: str) -> float | None:
        sources = [
            name for name in series.sources(prefix) if name == prefix or (prefix[-1] == ":" and name != LOOPBACK)
        ]
        return reduce([series.counter_growth(source, quantity, window) for source in sources], sum)

    def share(seconds: float | None) -> float | None:
        return seconds / (cores * window.seconds) if seconds is not None and cores else None

    cores = next(iter(series.values("cpu", "cores")), None)
    programs_s, ours_s = growth("cpu", "programs_s"), growth("ours", "cpu_s")
    by_others_s = None if programs_s is None or ours_s is None else max(0.0, programs_s - ours_s)
    ranks, swapped = series.sources("process:"), [growth("swap", f"{way}_bytes") for way in ("in", "out")]
    resident: dict[str, Any] = {
        f"{memory}_max": _rounded(reduce([series.reduce(rank, memory, window, max) for rank in ranks], sum))
        for memory in ("rss_bytes", "rss_anon_bytes")
    }
    traffic: dict[str, Any] = {
        name: None if (amount := growth(*counter)) is None else amount / window.seconds
        for name, counter in TRAFFIC.items()
    }
    return MonitorRecord(
        **combine_devices([_device(series, window, index, node) for index in used]),
        file=MONITOR_FILE,
        cpu_util_mean=share(growth("cpu", "busy_s")),
        cpu_util_ours_mean=share(growth("process:", "cpu_s")),
        # Neither of the run nor of the parent nor of the monitor.
        cpu_cores_others_mean=None if by_others_s is None else by_others_s / window.seconds,
        other_programs=name_other_programs(series),
        **resident,
        memory_available_bytes_min=_rounded(series.reduce("memory", "available_bytes", window, min)),
        swap_in_bytes=_rounded(_scaled(swapped[0], window)),
        swap_out_bytes=_rounded(_scaled(swapped[1], window)),
        **traffic,
    )


def combine_devices(devices: list[DeviceMonitorRecord]) -> dict[str, Any]:
    """Return the figures of a MonitorRecord that combine all its devices."""
    sources = {device.energy_from for device in devices}
    reasons = [device.throttle_reasons for device in devices if device.throttle_reasons is not None]
    return {
        "devices": devices,
        "energy_from": None if None in sources else "+".join(sorted(s for s in sources if s)) or None,
        "throttle_reasons": sorted({reason for each in reasons for reason in each}) if reasons else None,
        **{
            name: reduce([getattr(device, of_device) for device in devices], reduction)
            for name, (of_device, reduction) in COMBINED_FIGURES.items()
        },
    }


def _device(series: TimeSeries, window: TimeWindow, index: int, node: int | None) -> DeviceMonitorRecord:
    gpu = f"gpu{index}"
    counter_j = _scaled(series.counter_growth(gpu, "energy_j", window), window)
    power_j = _scaled(series.integral(gpu, "power_w", window), window)
    sent, received = (series.counter_growth(gpu, f"nvlink_{way}_bytes", window) for way in ("sent", "received"))
    # These reasons limited the clocks at some time; idling is none of them, nor is a reason that NVML did not report.
    quantities = [q for source, q in series.names if source == gpu and q.startswith(THROTTLED_PREFIX)]
    reasons = [q.removeprefix(THROTTLED_PREFIX) for q in quantities if series.values(gpu, q, window)]
    figures: dict[str, Any] = {
        name: series.reduce(gpu, quantity, window, reduction) for name, (quantity, reduction) in DEVICE_FIGURES.items()
    }
    return DeviceMonitorRecord(
        **figures,
        index=index,
        memory_used_bytes_max=_rounded(series.reduce(gpu, "memory_used_bytes", window, max)),
        energy_j=power_j if counter_j is None else counter_j,
        energy_from="counter" if counter_j is not None else "power" if power_j is not None else None,
        throttle_reasons=[name for name in reasons if name not in (NO_REASON, IDLE_REASON)] if reasons else None,
        nvlink_sent_bytes_per_s=None if sent is None else sent / window.seconds,
        nvlink_received_bytes_per_s=None if received is None else received / window.seconds,
        lost_at_s=next(iter(series.times_s(gpu, "lost")), None),
        node=node,
    )


def name_other_programs(series: TimeSeries) -> list[str] | None:
    """Return the programs outside the run that used the most time on the cores while it ran, the largest first; None
    where none used enough to have rows, or where /proc does not show them, as in a container."""
    used_s = {source.removeprefix(OTHER): series.values(source, "cpu_s")[-1] for source in series.sources(OTHER)}
    names = sorted(used_s, key=lambda name: -used_s[name])[:MAX_OTHER_PROGRAMS]
    return [name for name in names if used_s[name] >= used_s[names[0]] / 10] or None


def reduce(values: Sequence[float | None], reduction: Reduction) -> float | None:
    """Return the reduction of all values; None where one is missing or there are none: a partial figure would look
    complete."""
    present = [value for value in values if value is not None]
    return reduction(present) if present and len(present) == len(values) else None


def _scaled(amount: float | None, window: TimeWindow) -> float | None:
    return None if amount is None else amount * window.scale


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
