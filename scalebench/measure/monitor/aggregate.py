"""The monitor's part of a run's record: figures and flags from the time series of its nodes.

Where the nodes have a monitor each, every series is cut by the marks of the node's first rank, which are by the same
clock; a figure is null where one node has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.core.machine import gpus
from scalebench.core.machine.gpus import Gpu
from scalebench.core.machine.machine import Machine
from scalebench.core.result import MonitorRecord, RankRecord
from scalebench.core.run_folder import monitor_path
from scalebench.core.spec import RunSpec
from scalebench.measure import clock_sync
from scalebench.measure.monitor import summary
from scalebench.measure.monitor.flags import detect_flags, has_unequal_clocks
from scalebench.measure.monitor.time_series import MONITOR, RESUMED, Reduction, read_series
from scalebench.measure.nodes import NodeReport

# How figures of nodes are combined.
REDUCTIONS: dict[str, Reduction] = {
    **dict.fromkeys(("cpu_cores_others_mean", "rss_bytes_max", "rss_anon_bytes_max", *summary.TRAFFIC), sum),
    **dict.fromkeys(("swap_in_bytes", "swap_out_bytes"), sum),
    "memory_available_bytes_min": min,
}
CORE_SHARE_FIELDS = ("cpu_util_mean", "cpu_util_ours_mean")  # of the cores of a node


@dataclass(frozen=True)
class MonitorPart:
    """The monitor's figures and flags, as a part of a run's record."""

    monitor: MonitorRecord = field(default_factory=MonitorRecord)
    flags: list[str] = field(default_factory=list)


@dataclass
class NodeMonitor:
    """The figures of one node, or in `monitor.reason` why there are none."""

    monitor: MonitorRecord
    cores: float | None = None  # that the run may use on it
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
        if not reports:
            if not monitor_path(folder).exists():
                return MonitorPart(MonitorRecord(reason=reason))
            visible = gpus.visible_gpus() if spec.device == "cuda" else []
            part = summarize_node(spec, ranks, folder, None, NodeReport(0, 0, machine, visible, monitor_reason=reason))
            return MonitorPart(part.monitor, part.flags)
        nodes = [summarize_node(spec, ranks, folder, node, report) for node, report in enumerate(reports)]
        return MonitorPart(combine_nodes(spec, nodes), combine_flags(nodes))
    except Exception as error:
        text = f"the series could not be read: {type(error).__name__}: {' '.join(str(error).split())}"
        return MonitorPart(MonitorRecord(reason=text))


def _nvml_numbers(devices: set[int], visible: Sequence[int | None]) -> list[int]:
    """Return NVML's numbers of the devices that processes call 0, 1, ..., which CUDA_VISIBLE_DEVICES selects. A part of
    a GPU (MIG) has no figures of its own, and is left out."""
    numbers = {visible[device] for device in devices if device < len(visible)}
    return sorted(number for number in numbers if number is not None)


def _recorded_gpus(ranks: Sequence[RankRecord], machine: Machine) -> list[int]:
    """Return NVML's numbers of the GPUs whose UUIDs these ranks of the machine recorded; none where one is unknown.

    The agent of the first rank, which has the monitor, sees one GPU where SLURM shows each rank its own.
    """
    names = [name for rank in ranks for name in rank.gpus]
    if None in names:
        return []
    return sorted(gpu.index for gpu in machine.gpus if gpu.uuid and f"{gpu.name} {gpu.uuid}" in names)


def summarize_node(
    spec: RunSpec, ranks: Sequence[RankRecord], folder: Path, node: int | None, report: NodeReport | None
) -> NodeMonitor:
    """Return the figures of one node from its series and its report; `node` is its number among several.

    The series is cut by the marks of the first rank that measured there."""
    reason = report.monitor_reason if report is not None else "the agent of its first rank reported no machine"
    path = monitor_path(folder, node or 0)
    if report is None or not path.exists():
        return NodeMonitor(MonitorRecord(reason=reason or "there is no series"))
    on_node = [rank for rank in ranks if node in (None, spec.places[rank.rank].node)]
    first = next(
        (rank for rank in on_node if summary.measured_window(rank) is not None), on_node[0] if on_node else None
    )
    used = []
    if spec.device == "cuda":
        devices = {device for place in spec.places if node in (None, place.node) for device in place.devices}
        used = _recorded_gpus(on_node, report.machine) or _nvml_numbers(devices, report.visible_gpus)
    series = read_series(path)
    window = summary.measured_window(first, series.times_s(MONITOR, RESUMED))
    monitor = MonitorRecord() if window is None else summary.summarize_monitor(series, window, used, node)
    monitor.file, monitor.reason = path.name, reason or ("nothing was measured" if window is None else None)
    warmup_s = first.marks_s.get("warmup") if first is not None else None
    machine_gpus = [gpu for gpu in report.machine.gpus if gpu.index in used]
    flags = detect_flags(series, window, warmup_s, monitor, machine_gpus)
    for device in monitor.devices:
        if device.lost_at_s is not None and first is not None:
            device.lost_at_s = clock_sync.to_rank_0_clock_s(device.lost_at_s, first)
    return NodeMonitor(monitor, next(iter(series.values("cpu", "cores")), None), machine_gpus, flags)


def combine_nodes(spec: RunSpec, nodes: Sequence[NodeMonitor]) -> MonitorRecord:
    """Combine the figures of all nodes."""
    monitors = [node.monitor for node in nodes]
    run = MonitorRecord(file=monitors[0].file, reason=_reason(monitors))
    devices = [device for monitor in monitors for device in monitor.devices]
    incomplete = spec.device == "cuda" and not all(monitor.devices for monitor in monitors)
    for name, value in summary.combine_devices(devices).items():
        if name == "devices" or not incomplete:
            setattr(run, name, value)
    for name, reduction in REDUCTIONS.items():
        setattr(run, name, summary.reduce([getattr(monitor, name) for monitor in monitors], reduction))
    programs = [name for monitor in monitors for name in monitor.other_programs or []]
    run.other_programs = list(dict.fromkeys(programs))[: summary.MAX_OTHER_PROGRAMS] or None
    cores = [node.cores for node in nodes]
    for name in CORE_SHARE_FIELDS:
        shares = zip((getattr(monitor, name) for monitor in monitors), cores, strict=True)
        used = summary.reduce([None if None in pair else pair[0] * pair[1] for pair in shares], sum)
        setattr(run, name, None if used is None else used / sum(count or 0.0 for count in cores))
    return run


def combine_flags(nodes: Sequence[NodeMonitor]) -> list[str]:
    """Return the flags of any node, each once; and whether GPUs of different nodes ran at unequal clocks."""
    flags = dict.fromkeys(flag for node in nodes for flag in node.flags)
    devices = [device for node in nodes for device in node.monitor.devices]
    if has_unequal_clocks([gpu for node in nodes for gpu in node.gpus], devices):
        flags["unequal_clocks"] = None
    return list(flags)


def _reason(monitors: Sequence[MonitorRecord]) -> str | None:
    """Write the reasons in one line; without the nodes where all have the same."""
    reasons = [monitor.reason for monitor in monitors]
    if len(set(reasons)) == 1:
        return reasons[0]
    return "; ".join(f"node {node}: {reason}" for node, reason in enumerate(reasons) if reason is not None)
