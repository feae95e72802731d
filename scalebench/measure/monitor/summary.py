"""The figures of a run's record from its time series, cut to the measured phase: docs/reference/results.md."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from scalebench.core.result import DeviceMonitorRecord, MonitorRecord, RankRecord
from scalebench.core.run_folder import MONITOR_FILE
from scalebench.measure.monitor.gpu_sampler import NO_REASON, THROTTLED_PREFIX
from scalebench.measure.monitor.process_sampler import OTHER
from scalebench.measure.monitor.time_series import TimeSeries, TimeWindow

IDLE_REASON = "gpu_idle"
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
    return MonitorRecord(
        **combine_devices([_device(series, window, index, node) for index in used]),
        file=MONITOR_FILE,
        **_cores(series, window),
        **_memory(series, window),
        **_traffic(series, window),
    )


def combine_devices(devices: list[DeviceMonitorRecord]) -> dict[str, Any]:
    """Return the figures of a MonitorRecord that combine all its devices."""
    sources = {device.energy_from for device in devices}
    return {
        "devices": devices,
        "gpu_util_mean": mean_of([d.gpu_util_mean for d in devices]),
        "gpu_power_w_mean": sum_of([d.gpu_power_w_mean for d in devices]),
        "energy_j": sum_of([d.energy_j for d in devices]),
        "energy_from": None if None in sources else "+".join(sorted(s for s in sources if s)) or None,
        "sm_clock_mhz_min": smallest_of([d.sm_clock_mhz_min for d in devices]),
        "sm_clock_mhz_mean": mean_of([d.sm_clock_mhz_mean for d in devices]),
        "mem_clock_mhz_min": smallest_of([d.mem_clock_mhz_min for d in devices]),
        "mem_clock_mhz_mean": mean_of([d.mem_clock_mhz_mean for d in devices]),
        "gpu_temperature_c_max": _largest_of([d.temperature_c_max for d in devices]),
        "throttle_reasons": _union_of([d.throttle_reasons for d in devices]),
    }


def _device(series: TimeSeries, window: TimeWindow, index: int, node: int | None) -> DeviceMonitorRecord:
    gpu = f"gpu{index}"
    counter_j = _scaled(series.counter_growth(gpu, "energy_j", window), window)
    power_j = _scaled(series.integral(gpu, "power_w", window), window)
    sent, received = (series.counter_growth(gpu, f"nvlink_{way}_bytes", window) for way in ("sent", "received"))
    return DeviceMonitorRecord(
        index=index,
        gpu_util_mean=series.mean(gpu, "util_share", window),
        memory_util_mean=series.mean(gpu, "memory_util_share", window),
        memory_used_bytes_max=_rounded(series.largest(gpu, "memory_used_bytes", window)),
        gpu_power_w_mean=series.mean(gpu, "power_w", window),
        energy_j=power_j if counter_j is None else counter_j,
        energy_from="counter" if counter_j is not None else "power" if power_j is not None else None,
        sm_clock_mhz_min=series.smallest(gpu, "sm_clock_mhz", window),
        sm_clock_mhz_mean=series.mean(gpu, "sm_clock_mhz", window),
        mem_clock_mhz_min=series.smallest(gpu, "mem_clock_mhz", window),
        mem_clock_mhz_mean=series.mean(gpu, "mem_clock_mhz", window),
        temperature_c_max=series.largest(gpu, "temperature_c", window),
        throttle_reasons=list_throttle_reasons(series, gpu, window),
        pcie_sent_bytes_per_s=series.mean(gpu, "pcie_sent_bytes_per_s", window),
        pcie_received_bytes_per_s=series.mean(gpu, "pcie_received_bytes_per_s", window),
        nvlink_sent_bytes_per_s=_per_s(sent, window),
        nvlink_received_bytes_per_s=_per_s(received, window),
        lost_at_s=next(iter(series.times_s(gpu, "lost")), None),
        node=node,
    )


def list_throttle_reasons(series: TimeSeries, gpu: str, window: TimeWindow) -> list[str] | None:
    """Return what limited the clocks at any time in `window`, other than idling; None where NVML did not report it."""
    quantities = [q for source, q in series.names if source == gpu and q.startswith(THROTTLED_PREFIX)]
    reasons = [q.removeprefix(THROTTLED_PREFIX) for q in quantities if series.values(gpu, q, window)]
    return [reason for reason in reasons if reason not in (NO_REASON, IDLE_REASON)] if reasons else None


def _cores(series: TimeSeries, window: TimeWindow) -> dict[str, Any]:
    cores = next(iter(series.values("cpu", "cores")), None)
    busy_s = series.counter_growth("cpu", "busy_s", window)
    ranks = series.sources("process:")
    ours_s = sum_of([series.counter_growth(rank, "cpu_s", window) for rank in ranks])
    return {
        "cpu_util_mean": _share(busy_s, cores, window),
        "cpu_util_ours_mean": _share(ours_s, cores, window),
        "cpu_cores_others_mean": cores_of_other_programs(series, window),
        "other_programs": name_other_programs(series),
    }


def name_other_programs(series: TimeSeries) -> list[str] | None:
    """Return the programs outside the run that used the most time on the cores while it ran, the largest first; None
    where none used enough to have rows, or where /proc does not show them, as in a container."""
    used_s = {source.removeprefix(OTHER): series.values(source, "cpu_s")[-1] for source in series.sources(OTHER)}
    names = sorted(used_s, key=lambda name: -used_s[name])[:MAX_OTHER_PROGRAMS]
    return [name for name in names if used_s[name] >= used_s[names[0]] / 10] or None


def cores_of_other_programs(series: TimeSeries, window: TimeWindow) -> float | None:
    """Return how many of the allowed cores other programs used: neither the run nor the parent nor the monitor."""
    programs_s, ours_s = (
        series.counter_growth("cpu", "programs_s", window),
        series.counter_growth("ours", "cpu_s", window),
    )
    return None if programs_s is None or ours_s is None else max(0.0, programs_s - ours_s) / window.seconds


def _memory(series: TimeSeries, window: TimeWindow) -> dict[str, Any]:
    ranks = series.sources("process:")
    available = series.smallest("memory", "available_bytes", window)
    return {
        "rss_bytes_max": _rounded(sum_of([series.largest(rank, "rss_bytes", window) for rank in ranks])),
        "rss_anon_bytes_max": _rounded(sum_of([series.largest(rank, "rss_anon_bytes", window) for rank in ranks])),
        "memory_available_bytes_min": _rounded(available),
        "swap_in_bytes": _rounded(_scaled(series.counter_growth("swap", "in_bytes", window), window)),
        "swap_out_bytes": _rounded(_scaled(series.counter_growth("swap", "out_bytes", window), window)),
    }


def _traffic(series: TimeSeries, window: TimeWindow) -> dict[str, Any]:
    def rate(sources: Iterable[str], quantity: str) -> float | None:
        return _per_s(sum_of([series.counter_growth(source, quantity, window) for source in sources]), window)

    wires = [source for source in series.sources("net:") if source != "net:lo"]
    fabric = series.sources("infiniband:")
    return {
        "net_sent_bytes_per_s": rate(wires, "sent_bytes"),
        "net_received_bytes_per_s": rate(wires, "received_bytes"),
        "loopback_bytes_per_s": rate(["net:lo"], "sent_bytes"),
        "infiniband_sent_bytes_per_s": rate(fabric, "sent_bytes"),
        "infiniband_received_bytes_per_s": rate(fabric, "received_bytes"),
        "disk_read_bytes_per_s": rate(["disk"], "read_bytes"),
        "disk_written_bytes_per_s": rate(["disk"], "written_bytes"),
    }


def _all_or_none(values: Sequence[float | None]) -> list[float] | None:
    """Return all values; None where one is missing or there are none: a partial figure would look
    complete."""
    present = [value for value in values if value is not None]
    return present if present and len(present) == len(values) else None


def sum_of(values: Sequence[float | None]) -> float | None:
    complete = _all_or_none(values)
    return None if complete is None else sum(complete)


def mean_of(values: Sequence[float | None]) -> float | None:
    complete = _all_or_none(values)
    return None if complete is None else sum(complete) / len(complete)


def smallest_of(values: Sequence[float | None]) -> float | None:
    complete = _all_or_none(values)
    return None if complete is None else min(complete)


def _largest_of(values: Sequence[float | None]) -> float | None:
    complete = _all_or_none(values)
    return None if complete is None else max(complete)


def _union_of(lists: Sequence[list[str] | None]) -> list[str] | None:
    present = [names for names in lists if names is not None]
    return sorted({name for names in present for name in names}) if present else None


def _share(core_s: float | None, cores: float | None, window: TimeWindow) -> float | None:
    return core_s / (cores * window.seconds) if core_s is not None and cores else None


def _per_s(amount: float | None, window: TimeWindow) -> float | None:
    return None if amount is None else amount / window.seconds


def _scaled(amount: float | None, window: TimeWindow) -> float | None:
    return None if amount is None else amount * window.scale


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
