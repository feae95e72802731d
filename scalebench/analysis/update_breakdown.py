"""Where the time of an update goes: figures made on load of the series that the probes left. Layer 1.

Each is a mean over blocks with its 95 % interval over them, in seconds of one update. Over the ranks it is the median
one's, except where it says otherwise; what was not measured is None, and the record's reasons say why.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from scalebench.core.result import ProbeRecord, Result
from scalebench.core.stats.estimates import Interval, mean_interval

Series = Sequence[float]
Over = Callable[[Series], float]


def exposed(result: Result) -> Interval | None:
    """An update with the exchange minus one without: what overlap did not hide. Holds the straggler wait, which the
    slowest rank has none of."""
    return _difference(_probes(result), "sync_on_s", "sync_off_s")


def isolated(result: Result) -> Interval | None:
    """The exchange of one update alone, in the messages that are really sent, until the last rank has it."""
    return _mean(_probes(result), "isolated_sync_s", "isolated_sync_repeats", over=max)


def straggler_wait(result: Result) -> Interval | None:
    """How long the median device waits for the slowest in an update: of what each takes alone, for updates that all
    begin together, the largest minus the median."""
    devices = [series for probes in _probes(result) or [] for series in probes.local_step_s]
    if len(devices) < 2 or not all(devices):
        return None
    return mean_interval([max(step) - statistics.median(step) for step in zip(*devices, strict=False)])


def data(result: Result) -> Interval | None:
    """An update with its batch from the feed minus one on a batch that lies ready, both without the exchange where that
    can be switched off: what loading costs beside the device's work."""
    probes = _probes(result)
    reference = "sync_off_s" if probes and probes[0].sync_off_s else "sync_on_s"
    return _difference(probes, reference, "fixed_batch_s")


def forward(result: Result) -> Interval | None:
    return _mean(_probes(result), "forward_s", "part_steps")


def backward(result: Result) -> Interval | None:
    return _difference(_probes(result), "backward_s", "forward_s", "part_steps")


def optimizer(result: Result) -> Interval | None:
    return _difference(_probes(result), "optimizer_s", "backward_s", "part_steps")


def copy(result: Result) -> Interval | None:
    """A batch from host memory to the devices, alone."""
    return _mean(_probes(result), "copy_s", "copy_repeats")


# Column of the frame -> figure; each also with _low and _high. The reasons' names are in REASON_OF.
COLUMNS: dict[str, Callable[[Result], Interval | None]] = {
    "sync_isolated_s": isolated,
    "sync_exposed_s": exposed,
    "imbalance_s": straggler_wait,
    "data_s": data,
    "copy_s": copy,
    "forward_s": forward,
    "backward_s": backward,
    "optimizer_s": optimizer,
}
REASON_OF = {"sync_isolated_s": "isolated", "sync_exposed_s": "exposed", "imbalance_s": "imbalance"}


def cells(result: Result, step_s: float | None) -> dict[str, float | int | str | None]:
    """Of the frame's row; `step_s` is the measured update's."""
    found: dict[str, float | int | str | None] = {}
    intervals = {name: figure(result) for name, figure in COLUMNS.items()}
    for name, interval in intervals.items():
        found[name] = interval.value if interval else None
        found[f"{name}_low"], found[f"{name}_high"] = (interval.low, interval.high) if interval else (None, None)
    updates = result.workload.steps_per_epoch
    wanted = (intervals["sync_exposed_s"], intervals["data_s"])
    exposed_s, data_s = (interval.value if interval else None for interval in wanted)
    of_kernels, of_steps = collective_shares(result)
    messages = len(result.sync.message_bytes)
    return found | {
        "sync_exposed_share": exposed_s / step_s if exposed_s is not None and step_s else None,
        "sync_per_epoch_s": exposed_s * updates if exposed_s is not None and updates else None,
        "syncs_per_epoch": messages * updates if messages and updates else None,
        "data_share": data_s / step_s if data_s is not None and step_s else None,
        "collective_kernel_share": of_kernels,
        "collective_step_share": of_steps,
        "steady_after_steps": result.ranks[0].steady_after_steps if result.ranks else None,
    }


def reasons(result: Result) -> dict[str, str]:
    """Why quantities were not measured, as the first rank says."""
    probes = _probes(result)
    return dict(probes[0].reasons) if probes else {}


def collective_shares(result: Result) -> tuple[float | None, float | None]:
    """(share of all kernels' own time, share of the update's wall time) that collective operations take under the
    profiler, means over the ranks. The first can be large while the second is small, and the other way round."""
    profiles = [probes.profile for probes in _probes(result) or [] if probes.profile is not None]
    of_kernels = [p.collective_s / p.kernel_s for p in profiles if p.collective_s is not None and p.kernel_s]
    of_steps = [p.collective_s / p.step_s for p in profiles if p.collective_s is not None and p.step_s]
    return (
        statistics.fmean(of_kernels) if of_kernels else None,
        statistics.fmean(of_steps) if of_steps else None,
    )


def _probes(result: Result) -> list[ProbeRecord] | None:
    """Of all ranks; None where one has none."""
    found = [rank.probes for rank in result.ranks]
    if result.status != "ok" or not found or any(probes is None for probes in found):
        return None
    return [probes for probes in found if probes is not None]


def _mean(probes: list[ProbeRecord] | None, name: str, count: str, over: Over = statistics.median) -> Interval | None:
    blocks = _over_ranks(probes, lambda one: getattr(one, name), over)
    return _per(blocks, probes[0], count) if probes else None


def _difference(probes: list[ProbeRecord] | None, more: str, less: str, count: str = "steps") -> Interval | None:
    """The median rank's difference of blocks that took turns, block by block."""

    def differences(one: ProbeRecord) -> list[float]:
        return [a - b for a, b in zip(getattr(one, more), getattr(one, less), strict=False)]

    blocks = _over_ranks(probes, differences, statistics.median)
    return _per(blocks, probes[0], count) if probes else None


def _over_ranks(probes: list[ProbeRecord] | None, series: Callable[[ProbeRecord], Series], over: Over) -> list[float]:
    ranks = [series(one) for one in probes or []]
    return list(ranks[0]) if len(ranks) == 1 else [over(block) for block in zip(*ranks, strict=False)]


def _per(blocks: list[float], first: ProbeRecord, count: str) -> Interval | None:
    repeats = getattr(first, count)
    return mean_interval([seconds / repeats for seconds in blocks]) if repeats and len(blocks) > 1 else None
