"""Figures and flags of a run whose nodes each have a monitor, from those of the nodes. Layer 2.

Every node's series is cut by the marks of its own first rank, which go by the same clock. null where one node has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.gpus import Gpu
from scalebench.measure import clocks
from scalebench.measure.monitor import guards
from scalebench.measure.monitor.series import read_series
from scalebench.measure.monitor.summary import measured, of_devices, smallest_of, sum_of, summarise
from scalebench.measure.node import NodeFacts
from scalebench.monitor_records import Monitor
from scalebench.results import RankRecord
from scalebench.run_folder import monitor_path
from scalebench.spec import RunSpec

ADDED_UP = (
    "cpu_cores_others_mean", "rss_bytes_max", "rss_anon_bytes_max", "swap_in_bytes", "swap_out_bytes",
    "net_sent_bytes_per_s", "net_received_bytes_per_s", "loopback_bytes_per_s", "infiniband_sent_bytes_per_s",
    "infiniband_received_bytes_per_s", "disk_read_bytes_per_s", "disk_written_bytes_per_s",
)  # fmt: skip
SHARES = ("cpu_util_mean", "cpu_util_ours_mean")  # of the cores of a node


@dataclass
class Seen:
    """One node: its figures, or in `monitor.reason` why there are none."""

    monitor: Monitor
    cores: float | None = None  # that the run may use there
    gpus: list[Gpu] = field(default_factory=list)  # that it used there
    flags: list[str] = field(default_factory=list)


def of_node(spec: RunSpec, ranks: Sequence[RankRecord], folder: Path, node: int, told: NodeFacts | None) -> Seen:
    """What node's monitor saw, by what the node `told` of itself."""
    reason = told.monitor_reason if told is not None else "its first rank's keeper told nothing of the machine"
    path = monitor_path(folder, node)
    if told is None or not path.exists():
        return Seen(Monitor(reason=reason or "there is no series"))
    here = [rank for rank in ranks if spec.places[rank.rank].node == node]
    first = next((rank for rank in here if measured(rank) is not None), here[0] if here else None)
    window = measured(first)
    series = read_series(path)
    used = _used(spec, node, told)
    monitor = Monitor() if window is None else summarise(series, window, used, node)
    monitor.file = path.name
    monitor.reason = reason or ("no rank measured there" if window is None else None)
    gpus = [gpu for gpu in told.machine.gpus if gpu.index in used]
    warmup_s = first.marks_s.get("warmup") if first is not None else None
    flags = guards.flags(series, window, warmup_s, monitor, gpus)
    for device in monitor.devices:
        if device.lost_at_s is not None and first is not None:
            device.lost_at_s = clocks.on_rank_0_s(device.lost_at_s, first)
    return Seen(monitor, next(iter(series.values("cpu", "cores")), None), gpus, flags)


def together(spec: RunSpec, nodes: Sequence[Seen]) -> Monitor:
    """The run's figures, from those of all its nodes."""
    monitors = [seen.monitor for seen in nodes]
    whole = Monitor(file=monitors[0].file, reason=_reason(monitors))
    devices = [device for monitor in monitors for device in monitor.devices]
    silent = spec.device == "cuda" and not all(monitor.devices for monitor in monitors)
    for name, value in of_devices(devices).items():
        if name == "devices" or not silent:
            setattr(whole, name, value)
    for name in ADDED_UP:
        setattr(whole, name, sum_of([getattr(monitor, name) for monitor in monitors]))
    for name in SHARES:
        setattr(whole, name, _share([getattr(monitor, name) for monitor in monitors], [seen.cores for seen in nodes]))
    least = smallest_of([monitor.memory_available_bytes_min for monitor in monitors])
    whole.memory_available_bytes_min = None if least is None else round(least)
    return whole


def flags(nodes: Sequence[Seen]) -> list[str]:
    """Those of any node, each once; and whether GPUs of different nodes ran at unequal clocks."""
    found = dict.fromkeys(flag for seen in nodes for flag in seen.flags)
    devices = [device for seen in nodes for device in seen.monitor.devices]
    if guards.unequal([gpu for seen in nodes for gpu in seen.gpus], devices):
        found["unequal_clocks"] = None
    return list(found)


def _used(spec: RunSpec, node: int, told: NodeFacts) -> list[int]:
    """NVML's numbers of the node's GPUs that the run used, sorted; a part of a GPU has no figures of its own."""
    if spec.device != "cuda":
        return []
    asked = {device for place in spec.places if place.node == node for device in place.devices}
    found = {told.visible_gpus[device] for device in asked if device < len(told.visible_gpus)}
    return sorted(number for number in found if number is not None)


def _reason(monitors: Sequence[Monitor]) -> str | None:
    """In one line; without the nodes where it is the same of all."""
    reasons = [monitor.reason for monitor in monitors]
    if len(set(reasons)) == 1:
        return reasons[0]
    return "; ".join(f"node {node}: {reason}" for node, reason in enumerate(reasons) if reason is not None)


def _share(shares: Sequence[float | None], cores: Sequence[float | None]) -> float | None:
    """Of the cores of all nodes, from those of each."""
    used = sum_of([None if a is None or b is None else a * b for a, b in zip(shares, cores, strict=True)])
    count = sum_of(cores)
    return None if used is None or not count else used / count
