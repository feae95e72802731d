"""The monitor's part of a run's record: figures from the time series of its nodes, cut to the measured phase.

docs/reference/results.md explains them. Where the nodes have a monitor each, every series is cut by the marks of the
node's first rank, which are by the same clock. A figure is null where a device, a rank or a node has none.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.core.machine.gpus import Gpu
from scalebench.core.machine.machine import Machine
from scalebench.core.result import DeviceMonitorRecord, MonitorRecord, RankRecord
from scalebench.core.run_folder import monitor_path
from scalebench.core.spec import RunSpec
from scalebench.measure import clock_sync
from scalebench.measure.monitor.flags import detect_flags, has_unequal_clocks
from scalebench.measure.monitor.gpu_sampler import IDLE_REASON, NO_REASON, THROTTLED_PREFIX
from scalebench.measure.monitor.process_sampler import OTHER
from scalebench.measure.monitor.time_series import (
    MONITOR,
    RESUMED,
    Reduction,
    TimeSeries,
    TimeWindow,
    mean,
    read_series,
)
from scalebench.measure.nodes import NodeReport

LOOPBACK = "net:lo"
MAX_OTHER_PROGRAMS = 3  # that a record names, each with at least a tenth of the time of the first


def over(reduction: Reduction) -> Callable[[TimeSeries, str, str, TimeWindow], float | None]:
    return lambda series, source, quantity, window: series.reduce(source, quantity, window, reduction)


# Each figure of a machine has its source (or the beginning of the names of sources that are added up), the quantity,
# a function of the series over the window, and how nodes are combined. The record has no fields for those of cores.
MACHINE_FIGURES: dict[str, tuple[str, str, Callable[..., float | None], Reduction]] = {
    "cores": ("cpu", "cores", lambda series, source, quantity, window: series.first(source, quantity), sum),
    "cores_busy": ("cpu", "busy_s", TimeSeries.rate, sum),
    "cores_of_ranks": ("process:", "cpu_s", TimeSeries.rate, sum),
    "cores_of_programs": ("cpu", "programs_s", TimeSeries.rate, sum),
    "cores_of_run": ("ours", "cpu_s", TimeSeries.rate, sum),
    "rss_bytes_max": ("process:", "rss_bytes", over(max), sum),
    "rss_anon_bytes_max": ("process:", "rss_anon_bytes", over(max), sum),
    "memory_available_bytes_min": ("memory", "available_bytes", over(min), min),
    "swap_in_bytes": ("swap", "in_bytes", TimeSeries.growth, sum),
    "swap_out_bytes": ("swap", "out_bytes", TimeSeries.growth, sum),
    "net_sent_bytes_per_s": ("net:", "sent_bytes", TimeSeries.rate, sum),  # but for the loopback
    "net_received_bytes_per_s": ("net:", "received_bytes", TimeSeries.rate, sum),
    "loopback_bytes_per_s": (LOOPBACK, "sent_bytes", TimeSeries.rate, sum),
    "infiniband_sent_bytes_per_s": ("infiniband:", "sent_bytes", TimeSeries.rate, sum),
    "infiniband_received_bytes_per_s": ("infiniband:", "received_bytes", TimeSeries.rate, sum),
    "disk_read_bytes_per_s": ("disk", "read_bytes", TimeSeries.rate, sum),
    "disk_written_bytes_per_s": ("disk", "written_bytes", TimeSeries.rate, sum),
}
# Each figure of one GPU has its quantity and a function of the series over the window.
DEVICE_FIGURES: dict[str, tuple[str, Callable[..., float | None]]] = {
    "gpu_util_mean": ("util_share", over(mean)),
    "memory_util_mean": ("memory_util_share", over(mean)),
    "memory_used_bytes_max": ("memory_used_bytes", over(max)),
    "gpu_power_w_mean": ("power_w", over(mean)),
    "sm_clock_mhz_min": ("sm_clock_mhz", over(min)),
    "sm_clock_mhz_mean": ("sm_clock_mhz", over(mean)),
    "mem_clock_mhz_min": ("mem_clock_mhz", over(min)),
    "mem_clock_mhz_mean": ("mem_clock_mhz", over(mean)),
    "temperature_c_max": ("temperature_c", over(max)),
    "pcie_sent_bytes_per_s": ("pcie_sent_bytes_per_s", over(mean)),
    "pcie_received_bytes_per_s": ("pcie_received_bytes_per_s", over(mean)),
    "nvlink_sent_bytes_per_s": ("nvlink_sent_bytes", TimeSeries.rate),
    "nvlink_received_bytes_per_s": ("nvlink_received_bytes", TimeSeries.rate),
}
# Each figure of all GPUs is combined from that of each GPU by a function.
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


@dataclass(frozen=True)
class MonitorPart:
    """The monitor's figures and flags, as a part of a run's record."""

    monitor: MonitorRecord = field(default_factory=MonitorRecord)
    flags: list[str] = field(default_factory=list)


@dataclass
class NodeMonitor:
    """The figures of one node, or in `reason` why there are none."""

    file: str | None = None
    reason: str | None = None
    figures: dict[str, float | None] = field(default_factory=dict)  # of MACHINE_FIGURES
    other_programs: list[str] = field(default_factory=list)
    devices: list[DeviceMonitorRecord] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)  # that the run used on it
    flags: list[str] = field(default_factory=list)


def make_monitor_part(
    spec: RunSpec,
    folder: Path,
    ranks: Sequence[RankRecord],
    machine: Machine,
    reason: str | None,
    reports: Sequence[NodeReport | None] = (),
) -> MonitorPart:
    """Make figures and flags of the series in `folder`.

    `machine` and `reason` (why something is missing) are those of the monitor on this host, which is the only one where
    there are no `reports` of nodes that had monitors of their own. Whatever goes wrong here is a reason in the record
    and no failed run.
    """
    try:
        numbered: list[tuple[int | None, NodeReport | None]] = [*enumerate(reports)]
        if not reports:
            numbered = [(None, NodeReport(0, 0, machine, monitor_reason=reason))]
        nodes = [summarize_node(spec, ranks, folder, number, report) for number, report in numbered]
        flags = dict.fromkeys(flag for node in nodes for flag in node.flags)
        if has_unequal_clocks(
            [gpu for node in nodes for gpu in node.gpus], [d for node in nodes for d in node.devices]
        ):
            flags["unequal_clocks"] = None
        return MonitorPart(combine_nodes(spec, nodes), list(flags))
    except Exception as error:
        text = f"the series could not be read: {type(error).__name__}: {' '.join(str(error).split())}"
        return MonitorPart(MonitorRecord(reason=text))


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


def summarize_node(
    spec: RunSpec, ranks: Sequence[RankRecord], folder: Path, number: int | None, report: NodeReport | None
) -> NodeMonitor:
    """Return the figures of one node from its series and its report; `number` is its own among several.

    The series is cut by the marks of the first rank that measured there."""
    path = monitor_path(folder, number or 0)
    if report is None:
        return NodeMonitor(reason="the agent of its first rank reported no machine")
    if not path.exists():
        return NodeMonitor(reason=report.monitor_reason or "there is no series")
    on_node = [rank for rank in ranks if number in (None, spec.places[rank.rank].node)]
    first = next((rank for rank in on_node if measured_window(rank) is not None), on_node[0] if on_node else None)
    names = [name for rank in on_node for name in rank.gpus]
    used = sorted(gpu.index for gpu in report.machine.gpus if f"{gpu.name} {gpu.uuid}" in names)
    if None in names:  # unknown, as a part of a GPU (MIG), which has no figures of its own
        used = []
    series = read_series(path)
    window = measured_window(first, series.times_s(MONITOR, RESUMED))
    node = NodeMonitor() if window is None else summarize_series(series, window, used, number)
    node.file, node.reason = path.name, report.monitor_reason or ("nothing was measured" if window is None else None)
    node.gpus = [gpu for gpu in report.machine.gpus if gpu.index in used]
    warmup_s = first.marks_s.get("warmup") if first is not None else None
    node.flags = detect_flags(series, window, warmup_s, node, node.gpus)
    for device in node.devices:
        if device.lost_at_s is not None and first is not None:
            device.lost_at_s = clock_sync.to_rank_0_clock_s(device.lost_at_s, first)
    return node


def summarize_series(
    series: TimeSeries, window: TimeWindow, used: Sequence[int], number: int | None = None
) -> NodeMonitor:
    """Return the figures of a machine in `window`, and of the GPUs `used` (by NVML's index)."""
    figures = {}
    for name, (source, quantity, take, _) in MACHINE_FIGURES.items():
        sources = [each for each in series.sources(source) if each != LOOPBACK] if source.endswith(":") else [source]
        figures[name] = reduce([take(series, each, quantity, window) for each in sources], sum)
    by_all, by_run = figures["cores_of_programs"], figures["cores_of_run"]
    figures["cpu_cores_others_mean"] = None if by_all is None or by_run is None else max(0.0, by_all - by_run)
    devices = [_summarize_device(series, window, index, number) for index in used]
    return NodeMonitor(figures=figures, other_programs=name_other_programs(series), devices=devices)


def _summarize_device(series: TimeSeries, window: TimeWindow, index: int, node: int | None) -> DeviceMonitorRecord:
    gpu = f"gpu{index}"
    counter_j, power_j = series.growth(gpu, "energy_j", window), series.integral(gpu, "power_w", window)
    # These reasons limited the clocks at some time; idling is none of them, nor is a reason that NVML did not report.
    quantities = [q for source, q in series.names if source == gpu and q.startswith(THROTTLED_PREFIX)]
    reasons = [q.removeprefix(THROTTLED_PREFIX) for q in quantities if series.values(gpu, q, window)]
    figures = {name: take(series, gpu, quantity, window) for name, (quantity, take) in DEVICE_FIGURES.items()}
    return DeviceMonitorRecord(
        **_round_bytes(figures),
        index=index,
        energy_j=power_j if counter_j is None else counter_j,
        energy_from="counter" if counter_j is not None else "power" if power_j is not None else None,
        throttle_reasons=[name for name in reasons if name not in (NO_REASON, IDLE_REASON)] if reasons else None,
        lost_at_s=next(iter(series.times_s(gpu, "lost")), None),
        node=node,
    )


def combine_nodes(spec: RunSpec, nodes: Sequence[NodeMonitor]) -> MonitorRecord:
    """Combine the figures of all nodes; those of GPUs are null where a node of a run on GPUs has none."""
    combined = {name: combine for name, (_, _, _, combine) in MACHINE_FIGURES.items()} | {"cpu_cores_others_mean": sum}
    figures = {name: reduce([n.figures.get(name) for n in nodes], combine) for name, combine in combined.items()}

    def share(cores: float | None) -> float | None:
        return cores / figures["cores"] if cores is not None and figures["cores"] else None

    reasons = [node.reason for node in nodes]
    of_all = "; ".join(f"node {number}: {reason}" for number, reason in enumerate(reasons) if reason is not None)
    programs = dict.fromkeys(name for node in nodes for name in node.other_programs)
    run = MonitorRecord(
        **_round_bytes({name: value for name, value in figures.items() if not name.startswith("cores")}),
        file=nodes[0].file,
        reason=reasons[0] if len(set(reasons)) == 1 else of_all,
        cpu_util_mean=share(figures["cores_busy"]),
        cpu_util_ours_mean=share(figures["cores_of_ranks"]),
        other_programs=list(programs)[:MAX_OTHER_PROGRAMS] or None,
        devices=[device for node in nodes for device in node.devices],
    )
    if spec.device != "cuda" or all(node.devices for node in nodes):
        for name, (of_device, combine) in COMBINED_FIGURES.items():
            setattr(run, name, reduce([getattr(device, of_device) for device in run.devices], combine))
        sources = {device.energy_from for device in run.devices}
        run.energy_from = None if None in sources else "+".join(sorted(map(str, sources))) or None
        throttled = [device.throttle_reasons for device in run.devices if device.throttle_reasons is not None]
        run.throttle_reasons = sorted({*itertools.chain(*throttled)}) if throttled else None
    return run


def name_other_programs(series: TimeSeries) -> list[str]:
    """Return the programs outside the run that used the most time on the cores while it ran, the largest first; none
    where none used enough to have rows, or where /proc does not show them, as in a container."""
    used_s = {source.removeprefix(OTHER): series.values(source, "cpu_s")[-1] for source in series.sources(OTHER)}
    names = sorted(used_s, key=lambda name: -used_s[name])[:MAX_OTHER_PROGRAMS]
    return [name for name in names if used_s[name] >= used_s[names[0]] / 10]


def reduce(values: Sequence[float | None], reduction: Reduction) -> float | None:
    """Return the reduction of all values; None where one is missing or there are none: a partial figure would look
    complete."""
    present = [value for value in values if value is not None]
    return reduction(present) if present and len(present) == len(values) else None


def _round_bytes(figures: dict[str, float | None]) -> dict[str, Any]:
    """Return figures of which amounts in bytes are whole numbers."""
    is_amount = re.compile(r"_bytes(_max|_min)?$").search
    return {name: round(value) if value is not None and is_amount(name) else value for name, value in figures.items()}
