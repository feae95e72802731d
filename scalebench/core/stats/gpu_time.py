"""Computes where the time of a GPU goes in a step, by unions of the intervals of its kernels and copies.

The terms are those of Holistic Trace Analysis. NCCL's kernels are apart from the others, since they spin while they
wait for their peers.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scalebench.core.probe_record import GpuTime

COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
Intervals = list[tuple[float, float]]


class GpuActivity(NamedTuple):
    """A kernel or a copy on a GPU, in seconds on the clock that the host's call has, too."""

    kind: str  # COMPUTE, COMMUNICATION or COPY
    start_s: float
    end_s: float
    called_s: float | None  # when the host's call that started it returned; None: unknown


def sum_up_gpu_time(activities: Sequence[GpuActivity], steps: int) -> GpuTime | None:
    """Return the seconds of one of `steps` steps on one GPU, from the first activity's start to the last one's end;
    None without any activity."""
    if not activities:
        return None
    of_kind = {kind: merge(a[1:3] for a in activities if a.kind == kind) for kind in (COMPUTE, COMMUNICATION, COPY)}
    kernels = merge([*of_kind[COMPUTE], *of_kind[COMMUNICATION]])
    busy = merge([*kernels, *of_kind[COPY]])
    compute_s, communication_s = measure(of_kind[COMPUTE]), measure(of_kind[COMMUNICATION])
    host_wait_s, kernel_wait_s = _split_waits(activities, busy)
    return GpuTime(
        compute_s=compute_s / steps,
        communication_s=communication_s / steps,
        hidden_s=(compute_s + communication_s - measure(kernels)) / steps,
        copy_s=(measure(busy) - measure(kernels)) / steps,
        host_wait_s=None if host_wait_s is None else host_wait_s / steps,
        kernel_wait_s=None if kernel_wait_s is None else kernel_wait_s / steps,
        kernels=sum(activity.kind != COPY for activity in activities) / steps,
    )


def mean_gpu_time(times: Sequence[GpuTime]) -> GpuTime | None:
    """Return the mean of each figure, None where one of them is unknown; None for no times at all."""
    if not times:
        return None
    of_field = {name: [getattr(each, name) for each in times] for name in GpuTime.__struct_fields__}
    means: dict[str, Any] = {n: None if None in values else statistics.fmean(values) for n, values in of_field.items()}
    return GpuTime(**means)


def merge(intervals: Iterable[Sequence[float]]) -> Intervals:
    """Return the union of intervals as disjoint ones in order."""
    merged: Intervals = []
    for start, end in sorted((start, end) for start, end in intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def measure(intervals: Intervals) -> float:
    """Return the length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def _split_waits(activities: Sequence[GpuActivity], busy: Intervals) -> tuple[float | None, float | None]:
    """Split the gaps between busy intervals where the host's call for the next activity returned."""
    if any(activity.called_s is None for activity in activities):
        return None, None
    called_s: dict[float, float] = {}  # by the start of the activity
    for activity in activities:
        assert activity.called_s is not None
        called_s[activity.start_s] = min(activity.called_s, called_s.get(activity.start_s, activity.called_s))
    host_s = kernel_s = 0.0
    for (_, gap_start), (gap_end, _) in itertools.pairwise(busy):
        border = min(max(called_s[gap_end], gap_start), gap_end)
        host_s, kernel_s = host_s + border - gap_start, kernel_s + gap_end - border
    return host_s, kernel_s
