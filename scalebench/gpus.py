"""The GPUs of this machine as NVML tells them, and how many of them a process would see.

Nothing here raises because the machine lacks something: what cannot be told is None (or left out), never 0.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Ask = Callable[..., Any]

# Values of nvml.h, fixed by its binary interface.
SM_CLOCK, MEM_CLOCK, MAX_NVLINKS, LINK_ACTIVE, SWITCH_TYPE = 1, 2, 36, 1, 2
# The words of `nvidia-smi topo -m`; 0 is one board with two GPUs, which it shows as PIX as well.
ANCESTOR_WORDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

_ROOT = Path("/")  # tests put a folder of their own here


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML tells it; a field that NVML refuses is None. `index` is NVML's (PCI bus order)."""

    index: int
    name: str | None
    uuid: str | None
    memory_bytes: int | None
    sm_clock_max_mhz: int | None
    mem_clock_max_mhz: int | None
    power_limit_w: float | None  # the limit in force, also where it is under the card's own
    numa_node: int | None
    pci_bus_id: str | None


@dataclass(frozen=True)
class GpuFacts:
    """All GPUs that NVML shows, whatever CUDA_VISIBLE_DEVICES hides, their connections and their driver."""

    gpus: list[Gpu]
    topology: list[list[str]] | None  # word per GPU pair: X, NV#, PIX, PXB, PHB, NODE, SYS
    driver_version: str | None
    cuda_driver_version: str | None


def detect_gpus() -> GpuFacts:
    """Ask NVML for everything once; milliseconds, longer where the GPU driver has to wake up."""
    with _nvml() as ask:
        handles = [ask("nvmlDeviceGetHandleByIndex", i) for i in range(ask("nvmlDeviceGetCount") or 0)]
        gpus = [_gpu(ask, index, handle) for index, handle in enumerate(handles)]
        topology = _topology(ask, handles, gpus)
        driver, cuda = ask("nvmlSystemGetDriverVersion"), ask("nvmlSystemGetCudaDriverVersion_v2")
    return GpuFacts(gpus, topology, driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}")


def gpu_count() -> int:
    """How many GPUs a process started now would see: those of NVML that CUDA_VISIBLE_DEVICES leaves."""
    with _nvml() as ask:
        count: int = ask("nvmlDeviceGetCount") or 0
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return count if visible is None else _count_visible(ask, visible.split(","), count)


def or_none(question: Callable[[], T]) -> T | None:
    """The answer, or None: no fact about the machine is worth a failed run, whatever a driver throws."""
    try:
        return question()
    except Exception:
        return None


@contextmanager
def _nvml() -> Iterator[Ask]:
    """A function that asks NVML by name; None is the answer to what cannot be told, without NVML to all."""
    nvml: Any = None
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        nvml = pynvml

    def ask(name: str, *args: Any) -> Any:
        value = or_none(lambda: getattr(nvml, name)(*args))
        return value.decode(errors="replace") if isinstance(value, bytes) else value  # bytes: older pynvml

    try:
        yield ask
    finally:
        ask("nvmlShutdown")


def _gpu(ask: Ask, index: int, handle: Any) -> Gpu:
    pci_bus_id = getattr(ask("nvmlDeviceGetPciInfo", handle), "busId", None)
    power_limit_mw = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    return Gpu(
        index=index,
        name=ask("nvmlDeviceGetName", handle),
        uuid=ask("nvmlDeviceGetUUID", handle),
        memory_bytes=getattr(ask("nvmlDeviceGetMemoryInfo", handle), "total", None),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", handle, SM_CLOCK),
        mem_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", handle, MEM_CLOCK),
        power_limit_w=None if power_limit_mw is None else power_limit_mw / 1000,
        numa_node=or_none(partial(_numa_node, pci_bus_id)),
        pci_bus_id=pci_bus_id,
    )


def _numa_node(pci_bus_id: str | None) -> int | None:
    """The NUMA node that a GPU hangs from, by sysfs: NVML's own call is for GPUs that are such a node."""
    domain, _, rest = (pci_bus_id or "0:").lower().partition(":")
    address = f"{int(domain, 16):04x}:{rest}"  # NVML writes the domain with eight digits
    node = int(_ROOT.joinpath("sys/bus/pci/devices", address, "numa_node").read_text())
    return None if node < 0 else node  # -1: the firmware does not say


def _topology(ask: Ask, handles: Sequence[Any], gpus: Sequence[Gpu]) -> list[list[str]] | None:
    """How each pair of GPUs is connected; None without GPUs, or where a pair's answer is missing."""
    links = [_nvlinks(ask, handle) for handle in handles]

    def word(a: int, b: int) -> str:
        if a == b:
            return "X"
        # Linked to each other, or both to NVSwitches, which connect all with all.
        nvlinks = links[a][gpus[b].pci_bus_id or ""] or min(links[a]["switch"], links[b]["switch"])
        ancestor = ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        return f"NV{nvlinks}" if nvlinks else ANCESTOR_WORDS.get(ancestor, "")

    rows = [[word(a, b) for b in range(len(gpus))] for a in range(len(gpus))]
    return rows if rows and all(map(all, rows)) else None


def _nvlinks(ask: Ask, handle: Any) -> Counter[str]:
    """Active NVLinks of one GPU, counted by the PCI address of the other end, or 'switch'."""
    peers = []
    for link in range(MAX_NVLINKS):
        if ask("nvmlDeviceGetNvLinkState", handle, link) == LINK_ACTIVE:
            to_switch = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == SWITCH_TYPE
            pci_info = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            peers.append("switch" if to_switch else getattr(pci_info, "busId", None))
    return Counter(peer for peer in peers if peer)


def _count_visible(ask: Ask, entries: Sequence[str], count: int) -> int:
    """CUDA's reading of CUDA_VISIBLE_DEVICES: up to the first wrong entry, and none if one stands twice."""
    uuids = [str(ask("nvmlDeviceGetUUID", ask("nvmlDeviceGetHandleByIndex", i))) for i in range(count)]
    chosen: set[int] = set()
    for entry in map(str.strip, entries):
        if entry.startswith("MIG-"):  # a process is shown one MIG instance at most
            return int(ask("nvmlDeviceGetHandleByUUID", entry) is not None)
        uuid = entry if entry.startswith("GPU-") else "not one"  # or only the beginning of one
        found = {i for i in range(count) if entry == str(i) or uuids[i].startswith(uuid)}
        if len(found) != 1:
            break
        if found <= chosen:
            return 0
        chosen |= found
    return len(chosen)
