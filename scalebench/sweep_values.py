"""Values of a sweep that only the machine knows: `hardware.device_ids: "${each_device:}"` in conf/sweep. Layer 4."""

from __future__ import annotations

from omegaconf import OmegaConf

from scalebench import machine
from scalebench.resolve import CPU_WORKERS


def register() -> None:
    """Make them known to OmegaConf, for Hydra to fill in when a sweep names them."""
    OmegaConf.register_new_resolver("each_device", each_device, replace=True)
    OmegaConf.register_new_resolver("pair_of_each_link", pair_of_each_link, replace=True)


def each_device() -> str:
    """Every device of this machine alone, as Hydra takes values of a sweep: `[0],[1]`. CPU workers without a GPU."""
    return ",".join(f"[{device}]" for device in range(machine.gpu_count() or CPU_WORKERS))


def pair_of_each_link() -> str:
    """The first pair of devices for each way of connecting two: `[0,1],[0,2]`. The first two where that is untold."""
    return as_values(machine.pair_of_each_link() or [(0, 1)])


def as_values(pairs: list[tuple[int, int]]) -> str:
    return ",".join(f"[{a},{b}]" for a, b in pairs)
