"""The breakdown of a step into parts: figures computed on load from the series that probes recorded.

Each is a mean over blocks with its 95 % interval, in seconds of one step. Unless stated otherwise it is that of the
median rank. A figure that was not measured is None, and `unmeasured_reasons` has the reason.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from scalebench.core.result import ProbeRecord, Result
from scalebench.core.stats.estimates import Estimate, estimate_mean

Series = Sequence[float]
OverRanks = Callable[[Series], float]


def find_median(values: Series) -> float:
    """Return the median of a few values twice as fast as the module statistics: each run has dozens."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def exposed_sync(result: Result) -> Estimate | None:
    """Return the time of a step with gradient synchronization minus one without: what overlap did not hide. It includes
    the wait for the slowest rank, which that rank itself does not have."""
    return _difference(_probes(result), "sync_on_s", "sync_off_s")


def isolated_sync(result: Result) -> Estimate | None:
    """Return the time to synchronize the gradients of one step alone, in the messages of training, until the last rank
    has them."""
    return _mean(_probes(result), "isolated_sync_s", "isolated_sync_repeats", over=max)


def imbalance(result: Result) -> Estimate | None:
    """Return how long the median device waits for the slowest one in a step: the largest minus the median of their own
    times, for steps that all start together."""
    devices = [series for probes in _probes(result) or [] for series in probes.local_step_s]
    if len(devices) < 2 or not all(devices):
        return None
    return estimate_mean([max(step) - find_median(step) for step in zip(*devices, strict=False)])


def data_loading(result: Result) -> Estimate | None:
    """Return the time of a step with a batch from the feed minus one with a batch on the device: what loading costs
    beside the device's work. Both are without synchronization where that can be switched off."""
    probes = _probes(result)
    reference = "sync_off_s" if probes and probes[0].sync_off_s else "sync_on_s"
    return _difference(probes, reference, "fixed_batch_s")


def forward_pass(result: Result) -> Estimate | None:
    return _mean(_probes(result), "forward_s", "part_steps")


def backward_pass(result: Result) -> Estimate | None:
    return _difference(_probes(result), "backward_s", "forward_s", "part_steps")


def optimizer_step(result: Result) -> Estimate | None:
    return _difference(_probes(result), "optimizer_s", "backward_s", "part_steps")


def host_to_device_copy(result: Result) -> Estimate | None:
    """Return the time to copy a batch from host memory to the devices, alone."""
    return _mean(_probes(result), "copy_s", "copy_repeats")


# By column of the frame, which has _low and _high too. REASON_KEYS has their names in the recorded reasons.
BREAKDOWN_FIGURES: dict[str, Callable[[Result], Estimate | None]] = {
    "sync_isolated_s": isolated_sync,
    "sync_exposed_s": exposed_sync,
    "imbalance_s": imbalance,
    "data_s": data_loading,
    "copy_s": host_to_device_copy,
    "forward_s": forward_pass,
    "backward_s": backward_pass,
    "optimizer_s": optimizer_step,
}
REASON_KEYS = {"sync_isolated_s": "isolated", "sync_exposed_s": "exposed", "imbalance_s": "imbalance"}


def breakdown_cells(result: Result, step_s: float | None) -> dict[str, Any]:
    """Return the columns of a run; `step_s` is the measured time of its step."""
    cells: dict[str, Any] = {}
    for name, figure in BREAKDOWN_FIGURES.items():
        interval = figure(result)
        cells[name] = interval.value if interval else None
        cells[f"{name}_low"], cells[f"{name}_high"] = (interval.low, interval.high) if interval else (None, None)
    steps = result.workload.steps_per_epoch
    exposed_s, data_s = cells["sync_exposed_s"], cells["data_s"]
    of_kernels, of_steps = collective_shares(result)
    messages = len(result.sync.message_bytes)
    return cells | {
        "sync_exposed_share": exposed_s / step_s if exposed_s is not None and step_s else None,
        "sync_per_epoch_s": exposed_s * steps if exposed_s is not None and steps else None,
        "syncs_per_epoch": messages * steps if messages and steps else None,
        "data_share": data_s / step_s if data_s is not None and step_s else None,
        "collective_kernel_share": of_kernels,
        "collective_step_share": of_steps,
        "steady_after_steps": result.ranks[0].steady_after_steps if result.ranks else None,
    }


def unmeasured_reasons(result: Result) -> dict[str, str]:
    """Return why quantities were not measured, as recorded by the first rank."""
    probes = _probes(result)
    return dict(probes[0].reasons) if probes else {}


def collective_shares(result: Result) -> tuple[float | None, float | None]:
    """Return (share of all kernels' own time, share of the step's wall time) of collective operations under the
    profiler, means over the ranks. The first can be large while the second is small, and vice versa."""
    profiles = [probes.profile for probes in _probes(result) or [] if probes.profile is not None]
    of_kernels = [p.collective_s / p.kernel_s for p in profiles if p.collective_s is not None and p.kernel_s]
    of_steps = [p.collective_s / p.step_s for p in profiles if p.collective_s is not None and p.step_s]
    return (
        statistics.fmean(of_kernels) if of_kernels else None,
        statistics.fmean(of_steps) if of_steps else None,
    )


def _probes(result: Result) -> list[ProbeRecord] | None:
    """Return the probes of all ranks; None if one rank has none."""
    if result.status != "ok" or not result.ranks:
        return None
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    return probes if len(probes) == len(result.ranks) else None


def _mean(probes: list[ProbeRecord] | None, name: str, count: str, over: OverRanks = find_median) -> Estimate | None:
    blocks = _over_ranks(probes, lambda record: getattr(record, name), over)
    return _seconds_per_operation(blocks, probes[0], count) if probes else None


def _difference(probes: list[ProbeRecord] | None, more: str, less: str, count: str = "steps") -> Estimate | None:
    """Return the median rank's difference between interleaved blocks, block by block."""

    def differences(record: ProbeRecord) -> list[float]:
        return list(map(operator.sub, getattr(record, more), getattr(record, less)))  # as many as both have

    blocks = _over_ranks(probes, differences, find_median)
    return _seconds_per_operation(blocks, probes[0], count) if probes else None


def _over_ranks(
    probes: list[ProbeRecord] | None, series: Callable[[ProbeRecord], Series], over: OverRanks
) -> list[float]:
    ranks = [series(record) for record in probes or []]
    return list(ranks[0]) if len(ranks) == 1 else [over(block) for block in zip(*ranks, strict=False)]


def _seconds_per_operation(blocks: list[float], first: ProbeRecord, count: str) -> Estimate | None:
    repeats = getattr(first, count)
    return estimate_mean([seconds / repeats for seconds in blocks]) if repeats and len(blocks) > 1 else None
