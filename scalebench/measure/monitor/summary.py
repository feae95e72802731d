"""The figures of a run's record from its series, cut to the measured phase. docs/monitor.md defines each. Layer 2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scalebench.core.result import DeviceMonitor, Monitor, RankRecord
from scalebench.core.run_folder import MONITOR_FILE
from scalebench.measure.monitor.gpu_sampler import NO_REASON, THROTTLED
from scalebench.measure.monitor.time_series import Series, Window

IDLE = "gpu_idle"


def measured(rank: RankRecord | None) -> Window | None:
    """From the start of the measured phase to that of the next one, by this rank's own marks, without the evaluations
    in the midst of a training."""
    begin_s = rank.marks_s.get("measure") if rank is not None else None
    if rank is None or begin_s is None:
        return None
    end_s = min((mark_s for mark_s in rank.marks_s.values() if mark_s > begin_s), default=None)
    looked = tuple((point.at_s, point.at_s + point.evaluate_s) for point in rank.curve)
    return None if end_s is None else Window(begin_s, end_s, looked)


def summarise(series: Series, window: Window, used: Sequence[int], node: int | None = None) -> Monitor:
    """What the GPUs `used` (by NVML's index) and the machine did in `window`; `node`: which of several it is."""
    return Monitor(
        **of_devices([_device(series, window, index, node) for index in used]),
        file=MONITOR_FILE,
        **_cores(series, window),
        **_memory(series, window),
        **_traffic(series, window),
    )


def of_devices(devices: list[DeviceMonitor]) -> dict[str, Any]:
    """The figures of a Monitor that are of all its devices together."""
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
        "gpu_temperature_c_max": _largest([d.temperature_c_max for d in devices]),
        "throttle_reasons": _union([d.throttle_reasons for d in devices]),
    }


def _device(series: Series, window: Window, index: int, node: int | None) -> DeviceMonitor:
    gpu = f"gpu{index}"
    counter_j, power_j = series.counted(gpu, "energy_j", window), series.integral(gpu, "power_w", window)
    sent, received = (series.counted(gpu, f"nvlink_{way}_bytes", window) for way in ("sent", "received"))
    return DeviceMonitor(
        index=index,
        gpu_util_mean=series.mean(gpu, "util_share", window),
        memory_util_mean=series.mean(gpu, "memory_util_share", window),
        memory_used_bytes_max=_whole(series.largest(gpu, "memory_used_bytes", window)),
        gpu_power_w_mean=series.mean(gpu, "power_w", window),
        energy_j=power_j if counter_j is None else counter_j,
        energy_from="counter" if counter_j is not None else "power" if power_j is not None else None,
        sm_clock_mhz_min=series.smallest(gpu, "sm_clock_mhz", window),
        sm_clock_mhz_mean=series.mean(gpu, "sm_clock_mhz", window),
        mem_clock_mhz_min=series.smallest(gpu, "mem_clock_mhz", window),
        mem_clock_mhz_mean=series.mean(gpu, "mem_clock_mhz", window),
        temperature_c_max=series.largest(gpu, "temperature_c", window),
        throttle_reasons=throttle_reasons(series, gpu, window),
        pcie_sent_bytes_per_s=series.mean(gpu, "pcie_sent_bytes_per_s", window),
        pcie_received_bytes_per_s=series.mean(gpu, "pcie_received_bytes_per_s", window),
        nvlink_sent_bytes_per_s=_per_s(sent, window),
        nvlink_received_bytes_per_s=_per_s(received, window),
        lost_at_s=next(iter(series.times_s(gpu, "lost")), None),
        node=node,
    )


def throttle_reasons(series: Series, gpu: str, window: Window) -> list[str] | None:
    """What held the clocks back at any time in `window`, other than having nothing to do."""
    seen = [q for source, q in series.names if source == gpu and q.startswith(THROTTLED)]
    words = [q.removeprefix(THROTTLED) for q in seen if series.values(gpu, q, window)]
    return [word for word in words if word not in (NO_REASON, IDLE)] if words else None


def _cores(series: Series, window: Window) -> dict[str, Any]:
    cores = next(iter(series.values("cpu", "cores")), None)
    busy_s = series.counted("cpu", "busy_s", window)
    ranks = series.sources("process:")
    ours_s = sum_of([series.counted(rank, "cpu_s", window) for rank in ranks])
    return {
        "cpu_util_mean": _share(busy_s, cores, window),
        "cpu_util_ours_mean": _share(ours_s, cores, window),
        "cpu_cores_others_mean": others(series, window),
    }


def others(series: Series, window: Window) -> float | None:
    """How many of the allowed cores were used by programs that are neither the run nor the parent nor the monitor."""
    programs_s, ours_s = series.counted("cpu", "programs_s", window), series.counted("ours", "cpu_s", window)
    return None if programs_s is None or ours_s is None else max(0.0, programs_s - ours_s) / window.seconds


def _memory(series: Series, window: Window) -> dict[str, Any]:
    ranks = series.sources("process:")
    available = series.smallest("memory", "available_bytes", window)
    return {
        "rss_bytes_max": _whole(sum_of([series.largest(rank, "rss_bytes", window) for rank in ranks])),
        "rss_anon_bytes_max": _whole(sum_of([series.largest(rank, "rss_anon_bytes", window) for rank in ranks])),
        "memory_available_bytes_min": _whole(available),
        "swap_in_bytes": _whole(series.counted("swap", "in_bytes", window)),
        "swap_out_bytes": _whole(series.counted("swap", "out_bytes", window)),
    }


def _traffic(series: Series, window: Window) -> dict[str, Any]:
    def rate(sources: Iterable[str], quantity: str) -> float | None:
        return _per_s(sum_of([series.counted(source, quantity, window) for source in sources]), window)

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


def _known(values: Sequence[float | None]) -> list[float] | None:
    """All of them; None where one is missing or there are none: a part would pass for the whole."""
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


def sum_of(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else sum(known)


def mean_of(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else sum(known) / len(known)


def smallest_of(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else min(known)


def _largest(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else max(known)


def _union(words: Sequence[list[str] | None]) -> list[str] | None:
    told = [of_one for of_one in words if of_one is not None]
    return sorted({word for of_one in told for word in of_one}) if told else None


def _share(core_s: float | None, cores: float | None, window: Window) -> float | None:
    return core_s / (cores * window.seconds) if core_s is not None and cores else None


def _per_s(amount: float | None, window: Window) -> float | None:
    return None if amount is None else amount / window.seconds


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
