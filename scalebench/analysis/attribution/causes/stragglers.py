"""Causes of waiting for the slowest, and of what changed between the figures and the probes. Layer 1."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scalebench.analysis.attribution.causes.cause import Case, Cause, percent, seconds, size
from scalebench.core.result import Result

ALWAYS = 0.8  # of the updates in which one device is the slowest


def slow_device(case: Case) -> Cause | None:
    # Source: keras-multi-gpu's measurements (three of six like GPUs slower, at lower memory clocks).
    series = _devices(case.result)
    if case.worth("imbalance") is None or len(series) < 2:
        return None
    slowest, often = _slowest(series)
    if often < ALWAYS:
        return None
    means = [statistics.fmean(one) for one in series]
    told = f"device {slowest} is the slowest in {percent(often)} of the updates: {seconds(means[slowest])} by itself, "
    return Cause(
        "imbalance",
        "one device is slower than the others, which wait for it at each update",
        "Compare the devices one by one (sweep=each_device), and leave a slow one out (hardware.device_ids)",
        told + f"the median device {seconds(statistics.median(means))}",
    )


def chance(case: Case) -> Cause | None:
    """Nobody is slow, but somebody always is: the slowest of many takes longer than the mean of them."""
    # Source: Petrini, Kerbyson and Pakin 2003, "The case of the missing supercomputer performance"; Hoefler, Schneider
    # and Lumsdaine 2010, "Characterizing the influence of system noise on large-scale applications by simulation".
    series = _devices(case.result)
    if case.worth("imbalance") is None or len(series) < 2 or _slowest(series)[1] >= ALWAYS:
        return None
    others = case.result.monitor.cpu_cores_others_mean
    beside = "" if others is None else f"; other programs use {others:.2g} cores"
    return Cause(
        "imbalance",
        "each time another device is the slowest: interruptions or uneven work rather than a slow device",
        "Look at what else runs there; a larger batch exchanges less often, and evens out",
        f"no device is the slowest in more than {percent(_slowest(series)[1])} of the updates{beside}",
    )


def unequal_clocks(case: Case) -> Cause | None:
    # Source: keras-multi-gpu's measurements (memory clocks of 1683 and 1772 MHz, 15 % less throughput).
    if case.worth("imbalance") is None or not {"unequal_clocks", "throttled"} & set(case.flags):
        return None
    devices = [(one, f" of node {one.node}" if one.node else "") for one in case.result.monitor.devices]
    clocks = {f"GPU {one.index}{of}": one.sm_clock_mhz_mean for one, of in devices if one.sm_clock_mhz_mean}
    flags = [flag for flag in ("unequal_clocks", "throttled") if flag in case.flags]
    told = [f"flagged {' and '.join(flags)}"]
    if clocks:
        low, high = min(clocks, key=lambda i: clocks[i] or 0), max(clocks, key=lambda i: clocks[i] or 0)
        told.append(f"{low} at {clocks[low]:.0f} MHz, {high} at {clocks[high]:.0f} MHz")
    return Cause(
        "imbalance",
        "devices run at different clocks",
        "Set the same application clocks on all, and look at power limits and cooling (scalebench doctor)",
        ", ".join(told),
    )


def changed(case: Case) -> Cause | None:
    # Source: Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a machine's
    # state differs between measurements); flags of docs/record.md.
    monitor = case.result.monitor
    told = {
        "drifts": "the level of the blocks changes while they are measured",
        "busy_machine": "other programs computed on the machine",
        "swapping": "the machine swapped",
        "throttled": "clocks were held back",
        "hot_at_start": "a GPU was hot from the start",
    }
    found = [flag for flag in told if flag in case.flags]
    if case.worth("drift") is None or not found:
        return None
    figures = [f"flagged {', '.join(found)}"]
    if "busy_machine" in found and monitor.cpu_cores_others_mean is not None:
        figures.append(f"{monitor.cpu_cores_others_mean:.2g} cores in use by others")
    if "swapping" in found and monitor.swap_in_bytes is not None and monitor.swap_out_bytes is not None:
        figures.append(f"{size(monitor.swap_in_bytes + monitor.swap_out_bytes)} swapped")
    return Cause(
        "drift",
        f"the probes came after the figures, and meanwhile {', '.join(told[flag] for flag in found)}",
        "Measure on a quiet machine, with measure.repeats=3 and measure.cool_down_s",
        ", ".join(figures),
    )


def _devices(result: Result) -> list[Sequence[float]]:
    """Seconds of single updates of each device, nothing exchanged."""
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    found: list[Sequence[float]] = [series for one in probes for series in one.local_step_s]
    return found if len(probes) == len(result.ranks) and all(found) else []


def _slowest(series: Sequence[Sequence[float]]) -> tuple[int, float]:
    """(the device that most often is, the share of updates in which it is)."""
    updates = [max(range(len(step)), key=step.__getitem__) for step in zip(*series, strict=False)]
    most = statistics.mode(updates)
    return most, updates.count(most) / len(updates)


CHECKS = (slow_device, chance, unequal_clocks, changed)
