"""What the monitor saw in the measured phase of a run: docs/monitor.md says how each figure comes about. Layer 0.

null is what was not measured, or not for all nodes, devices or ranks of the run: a part never stands for the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DeviceMonitor:
    """One GPU of the run. `_mean`: over time."""

    index: int  # NVML's
    gpu_util_mean: float | None = None  # share of the time in which something ran on it
    memory_util_mean: float | None = None  # share of the time in which its memory was read or written
    memory_used_bytes_max: int | None = None
    gpu_power_w_mean: float | None = None
    energy_j: float | None = None
    energy_from: str | None = None  # counter: the GPU's own | power: the integral of its samples
    sm_clock_mhz_min: float | None = None
    sm_clock_mhz_mean: float | None = None
    mem_clock_mhz_min: float | None = None
    mem_clock_mhz_mean: float | None = None
    temperature_c_max: float | None = None
    throttle_reasons: list[str] | None = None  # as nvidia-smi names them; empty: nothing held its clocks back
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None
    lost_at_s: float | None = None  # seconds since the epoch; null: it was there to the end
    node: int | None = None  # whose GPU it is; null: that of the only machine


@dataclass
class Monitor:
    """The devices of the run together, its processes, and the machines that it ran on, added up."""

    file: str | None = None  # the whole series, in the run's folder; that of node 0, where others have their own
    reason: str | None = None  # why there is no series, or what is missing from it
    gpu_util_mean: float | None = None  # over time and devices
    gpu_power_w_mean: float | None = None  # over time, all devices together
    energy_j: float | None = None  # all devices together
    energy_from: str | None = None  # counter | power | counter+power
    sm_clock_mhz_min: float | None = None
    sm_clock_mhz_mean: float | None = None
    mem_clock_mhz_min: float | None = None
    mem_clock_mhz_mean: float | None = None
    gpu_temperature_c_max: float | None = None
    throttle_reasons: list[str] | None = None
    cpu_util_mean: float | None = None  # share of the cores that the run may use, whoever used them
    cpu_util_ours_mean: float | None = None  # the same, used by the ranks and what they started
    cpu_cores_others_mean: float | None = None  # cores' worth used by programs that do not belong to the run
    rss_bytes_max: int | None = None  # sum over the ranks
    rss_anon_bytes_max: int | None = None  # without mapped files, which the ranks share
    memory_available_bytes_min: int | None = None  # of any node
    swap_in_bytes: int | None = None  # of the whole machines, as is what follows
    swap_out_bytes: int | None = None
    net_sent_bytes_per_s: float | None = None  # all interfaces but the loopback
    net_received_bytes_per_s: float | None = None
    loopback_bytes_per_s: float | None = None
    infiniband_sent_bytes_per_s: float | None = None
    infiniband_received_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    devices: list[DeviceMonitor] = field(default_factory=list)
