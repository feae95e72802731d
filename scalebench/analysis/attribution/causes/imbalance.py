"""Causes of imbalance between devices, and of a difference between the timed blocks and the probes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scalebench.analysis.attribution.causes.cause import AttributedRun, Cause, format_whole_percent
from scalebench.core.result import Result
from scalebench.core.units import format_bytes, format_seconds

MIN_SLOWEST_SHARE = 0.8  # of the steps in which one device is the slowest


def check_slow_device(run: AttributedRun) -> Cause | None:
    # Source: keras-multi-gpu's measurements (three of six like GPUs slower, at lower memory clocks).
    series = _device_step_s(run.result)
    if run.significant("imbalance") is None or len(series) < 2:
        return None
    slowest, share = _find_slowest(series)
    if share < MIN_SLOWEST_SHARE:
        return None
    means = [statistics.fmean(device) for device in series]
    return Cause(
        "imbalance",
        "one device is slower than the others, which wait for it at each step",
        "Compare the devices one by one (sweep=each_device), and leave a slow one out (hardware.device_ids)",
        f"device {slowest} is the slowest in {format_whole_percent(share)} of the steps: "
        f"{format_seconds(means[slowest])} by itself, the median device {format_seconds(statistics.median(means))}",
    )


def check_random_delays(run: AttributedRun) -> Cause | None:
    """Check if no device is always slow: the slowest of many takes longer than their mean at each step."""
    # Source: Petrini, Kerbyson and Pakin 2003, "The case of the missing supercomputer performance"; Hoefler, Schneider
    # and Lumsdaine 2010, "Characterizing the influence of system noise on large-scale applications by simulation".
    series = _device_step_s(run.result)
    if run.significant("imbalance") is None or len(series) < 2:
        return None
    _, share = _find_slowest(series)
    if share >= MIN_SLOWEST_SHARE:
        return None
    others = run.result.monitor.cpu_cores_others_mean
    beside = "" if others is None else f"; other programs use {others:.2g} cores"
    return Cause(
        "imbalance",
        "each time another device is the slowest: interruptions or uneven work rather than a slow device",
        "Look at what else runs there; a larger batch synchronizes less often, and evens out",
        f"no device is the slowest in more than {format_whole_percent(share)} of the steps{beside}",
    )


def check_unequal_clocks(run: AttributedRun) -> Cause | None:
    # Source: keras-multi-gpu's measurements (memory clocks of 1683 and 1772 MHz, 15 % less throughput).
    flags = [flag for flag in ("unequal_clocks", "throttled") if flag in run.flags]
    if run.significant("imbalance") is None or not flags:
        return None
    devices = [(device, f" of node {device.node}" if device.node else "") for device in run.result.monitor.devices]
    clocks = {f"GPU {device.index}{of}": device.sm_clock_mhz_mean for device, of in devices if device.sm_clock_mhz_mean}
    evidence = f"flagged {' and '.join(flags)}"
    if clocks:
        low, high = min(clocks, key=lambda i: clocks[i] or 0), max(clocks, key=lambda i: clocks[i] or 0)
        evidence += f", {low} at {clocks[low]:.0f} MHz, {high} at {clocks[high]:.0f} MHz"
    return Cause(
        "imbalance",
        "devices run at different clocks",
        "Set the same application clocks on all, and look at power limits and cooling (scalebench doctor)",
        evidence,
    )


def check_changed_conditions(run: AttributedRun) -> Cause | None:
    # Source: Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a machine's
    # state differs between measurements); flags of docs/reference/results.md.
    monitor = run.result.monitor
    meaning = {
        "drifts": "the level of the blocks changes while they are measured",
        "busy_machine": "other programs computed on the machine",
        "swapping": "the machine swapped",
        "throttled": "clocks were held back",
        "hot_at_start": "a GPU was hot from the start",
    }
    flags = [flag for flag in meaning if flag in run.flags]
    if run.significant("drift") is None or not flags:
        return None
    evidence = [f"flagged {', '.join(flags)}"]
    if "busy_machine" in flags and monitor.cpu_cores_others_mean is not None:
        evidence.append(f"{monitor.cpu_cores_others_mean:.2g} cores in use by others")
    if "swapping" in flags and monitor.swap_in_bytes is not None and monitor.swap_out_bytes is not None:
        evidence.append(f"{format_bytes(monitor.swap_in_bytes + monitor.swap_out_bytes)} swapped")
    return Cause(
        "drift",
        f"the probes came after the timed blocks, and meanwhile {', '.join(meaning[flag] for flag in flags)}",
        "Measure on a quiet machine, with measure.repeats=3 and measure.cool_down_s",
        ", ".join(evidence),
    )


def _device_step_s(result: Result) -> list[Sequence[float]]:
    """Return the seconds of single steps of each device, without synchronization."""
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    devices: list[Sequence[float]] = [series for probe in probes for series in probe.local_step_s]
    return devices if len(probes) == len(result.ranks) and all(devices) else []


def _find_slowest(series: Sequence[Sequence[float]]) -> tuple[int, float]:
    """Return the device that is most often the slowest, and the share of steps in which it is."""
    slowest_of_steps = [max(range(len(step)), key=step.__getitem__) for step in zip(*series, strict=False)]
    slowest = statistics.mode(slowest_of_steps)
    return slowest, slowest_of_steps.count(slowest) / len(slowest_of_steps)


IMBALANCE_CHECKS = (check_slow_device, check_random_delays, check_unequal_clocks, check_changed_conditions)
