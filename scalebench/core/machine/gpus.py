"""The GPUs of this machine as NVML tells them, and which of them a process would see. Layer 0.

Nothing here raises because the machine lacks something: what cannot be told is None (or left out), never 0.

How the GPUs of this machine are connected, and whether each may read and write the other's memory. Layer 0.

Asking NVML, which may be missing, old, or refuse: no answer is None. Layer 0.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from scalebench.core.machine import cpus

T = TypeVar("T")
Ask = Callable[..., Any]


def or_none(question: Callable[[], T]) -> T | None:
    """The answer, or None: no fact about the machine is worth a failed run, whatever a driver throws."""
    try:
        return question()
    except Exception:
        return None


@contextmanager
def asking() -> Iterator[Ask]:
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


# Values of nvml.h, fixed by its binary interface.
MAX_NVLINKS, LINK_ACTIVE, SWITCH_TYPE = 36, 1, 2
# The words of `nvidia-smi topo -m`; 0 is one board with two GPUs, which it shows as PIX as well.
ANCESTOR_WORDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Those of `nvidia-smi topo -p2p`: not by this chipset, GPU, topology; disabled in the registry; not at all; unknown.
PEER_WORDS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
PEER_KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}

Matrix = list[list[str]]


def topology(ask: Ask, handles: Sequence[Any], addresses: Sequence[str | None]) -> Matrix | None:
    """How each pair of GPUs is connected; None without GPUs, or where a pair's answer is missing."""
    links = [_nvlinks(ask, handle) for handle in handles]

    def word(a: int, b: int) -> str:
        # Linked to each other, or both to NVSwitches, which connect all with all.
        nvlinks = links[a][addresses[b] or ""] or min(links[a]["switch"], links[b]["switch"])
        ancestor = ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        return f"NV{nvlinks}" if nvlinks else ANCESTOR_WORDS.get(ancestor, "")

    return _matrix(len(handles), word)


def peer_access(ask: Ask, handles: Sequence[Any]) -> dict[str, Matrix] | None:
    """What the GPU of the row may do in the memory of the column's, one matrix for each of PEER_KINDS; OK is yes.

    Kinds that the driver does not tell of are left out; None where it tells of none.
    """
    found = {}
    for kind, number in PEER_KINDS.items():

        def word(a: int, b: int, number: int = number) -> str:
            return PEER_WORDS.get(ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], number), "")

        matrix = _matrix(len(handles), word)
        if matrix is not None:
            found[kind] = matrix
    return found or None


def pairs_by_link(words: Matrix) -> dict[str, list[tuple[int, int]]]:
    """Pairs of GPUs by what connects them, the lower number first, in the order of the first pair of each kind."""
    found: dict[str, list[tuple[int, int]]] = {}
    for a, row in enumerate(words):
        for b in range(a + 1, len(row)):
            found.setdefault(row[b], []).append((a, b))
    return found


def _matrix(size: int, word: Callable[[int, int], str]) -> Matrix | None:
    rows = [["X" if a == b else word(a, b) for b in range(size)] for a in range(size)]
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


# Values of nvml.h, fixed by its binary interface.
SM_CLOCK, MEM_CLOCK, SLOWDOWN = 1, 2, 1
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


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
    sm_clock_mhz: int | None = None  # at the time of asking
    mem_clock_mhz: int | None = None
    sm_clock_application_mhz: int | None = None  # asked for, for programs
    mem_clock_application_mhz: int | None = None
    sm_clock_default_mhz: int | None = None  # of programs, where nobody asks for another
    mem_clock_default_mhz: int | None = None
    power_limit_min_w: float | None = None  # within which an administrator can set the limit
    power_limit_max_w: float | None = None
    power_limit_default_w: float | None = None
    slowdown_temperature_c: int | None = None  # from which on it throttles
    mig: bool | None = None  # cut into instances
    ecc: bool | None = None
    compute_mode: str | None = None
    persistence: bool | None = None  # the driver stays loaded without a program
    pcie_generation: int | None = None  # at the time of asking: an idle link may have slowed down
    pcie_generation_max: int | None = None
    pcie_width: int | None = None  # lanes
    pcie_width_max: int | None = None


@dataclass(frozen=True)
class GpuFacts:
    """All GPUs that NVML shows, whatever CUDA_VISIBLE_DEVICES hides, their connections and their driver."""

    gpus: list[Gpu]
    topology: list[list[str]] | None  # word per GPU pair: X, NV#, PIX, PXB, PHB, NODE, SYS
    driver_version: str | None
    cuda_driver_version: str | None
    peer_access: dict[str, list[list[str]]] | None = None  # read, write, nvlink, atomics: word per GPU pair, OK is yes


def detect_gpus() -> GpuFacts:
    """Ask NVML for everything once; milliseconds, longer where the GPU driver has to wake up."""
    with asking() as ask:
        handles = _handles(ask)
        gpus = [_gpu(ask, index, handle) for index, handle in enumerate(handles)]
        topology_ = topology(ask, handles, [gpu.pci_bus_id for gpu in gpus])
        peers = peer_access(ask, handles)
        driver, cuda = ask("nvmlSystemGetDriverVersion"), ask("nvmlSystemGetCudaDriverVersion_v2")
    return GpuFacts(gpus, topology_, driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}", peers)


def visible_gpus() -> list[int | None]:
    """NVML's numbers of the GPUs that a process started now would see, in the order of their numbers there.

    Those that CUDA_VISIBLE_DEVICES leaves, in its order; CUDA counts the GPUs as NVML does with
    CUDA_DEVICE_ORDER=PCI_BUS_ID, which the launchers set. None for a part of a GPU.
    """
    with asking() as ask:
        return _visible(ask)


def gpu_count() -> int:
    """How many GPUs a process started now would see."""
    return len(visible_gpus())


def gpu_numa_nodes() -> list[int | None]:
    """The NUMA node of each GPU that a process started now would see."""
    with asking() as ask:
        handles = _handles(ask)
        return [None if index is None else _numa_node(_bus_id(ask, handles[index])) for index in _visible(ask)]


def pair_of_each_link() -> list[tuple[int, int]]:
    """One pair of GPUs, as a process would number them, for each kind of connection; empty where that is untold."""
    with asking() as ask:
        everyone = _handles(ask)
        handles = [everyone[index] for index in _visible(ask) if index is not None]
        words = topology(ask, handles, [_bus_id(ask, handle) for handle in handles])
    return [pairs[0] for pairs in pairs_by_link(words).values()] if words is not None else []


def _handles(ask: Ask) -> list[Any]:
    return [ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0)]


def _gpu(ask: Ask, index: int, handle: Any) -> Gpu:
    def told(name: str, *args: Any) -> Any:
        return ask(f"nvmlDeviceGet{name}", handle, *args)

    def watts(milliwatts: float | None) -> float | None:
        return None if milliwatts is None else milliwatts / 1000

    def switch(state: int | None) -> bool | None:
        return None if state is None else bool(state)

    pci_bus_id = _bus_id(ask, handle)
    lowest, highest = told("PowerManagementLimitConstraints") or (None, None)
    return Gpu(
        index=index,
        name=told("Name"),
        uuid=told("UUID"),
        memory_bytes=getattr(told("MemoryInfo"), "total", None),
        sm_clock_max_mhz=told("MaxClockInfo", SM_CLOCK),
        mem_clock_max_mhz=told("MaxClockInfo", MEM_CLOCK),
        power_limit_w=watts(told("EnforcedPowerLimit")),
        numa_node=_numa_node(pci_bus_id),
        pci_bus_id=pci_bus_id,
        sm_clock_mhz=told("ClockInfo", SM_CLOCK),
        mem_clock_mhz=told("ClockInfo", MEM_CLOCK),
        sm_clock_application_mhz=told("ApplicationsClock", SM_CLOCK),
        mem_clock_application_mhz=told("ApplicationsClock", MEM_CLOCK),
        sm_clock_default_mhz=told("DefaultApplicationsClock", SM_CLOCK),
        mem_clock_default_mhz=told("DefaultApplicationsClock", MEM_CLOCK),
        power_limit_min_w=watts(lowest),
        power_limit_max_w=watts(highest),
        power_limit_default_w=watts(told("PowerManagementDefaultLimit")),
        slowdown_temperature_c=told("TemperatureThreshold", SLOWDOWN),
        mig=switch((told("MigMode") or [None])[0]),  # now; what is pending comes second
        ecc=switch((told("EccMode") or [None])[0]),
        compute_mode=COMPUTE_MODES.get(told("ComputeMode")),
        persistence=switch(told("PersistenceMode")),
        pcie_generation=told("CurrPcieLinkGeneration"),
        pcie_generation_max=told("MaxPcieLinkGeneration"),
        pcie_width=told("CurrPcieLinkWidth"),
        pcie_width_max=told("MaxPcieLinkWidth"),
    )


def _bus_id(ask: Ask, handle: Any) -> str | None:
    found = getattr(ask("nvmlDeviceGetPciInfo", handle), "busId", None)
    return found.decode(errors="replace") if isinstance(found, bytes) else found  # bytes: older pynvml


def _numa_node(pci_bus_id: str | None) -> int | None:
    """The NUMA node that a GPU hangs from, by sysfs: NVML's own call is for GPUs that are such a node."""
    parts = re.fullmatch(r"([0-9a-f]+):(.+)", (pci_bus_id or "").lower())
    if parts is None:
        return None
    address = f"{int(parts[1], 16):04x}:{parts[2]}"  # NVML writes the domain with eight digits
    node = cpus.number("sys/bus/pci/devices", address, "numa_node")
    return None if node is None or node < 0 else node  # -1: the firmware does not say


def _visible(ask: Ask) -> list[int | None]:
    """CUDA's reading of CUDA_VISIBLE_DEVICES: up to the first wrong entry, and none if one stands twice."""
    handles = _handles(ask)
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(range(len(handles)))
    uuids = [str(ask("nvmlDeviceGetUUID", handle)) for handle in handles]
    chosen: list[int | None] = []
    for entry in map(str.strip, setting.split(",")):
        if entry.startswith("MIG-"):  # a process is shown one MIG instance at most
            return [None] if ask("nvmlDeviceGetHandleByUUID", entry) is not None else []
        found = _meant(entry, uuids)
        if len(found) != 1:
            break
        if found[0] in chosen:
            return []
        chosen += found
    return chosen


def _meant(entry: str, uuids: Sequence[str]) -> list[int]:
    uuid = entry if entry.startswith("GPU-") else "not one"  # or only the beginning of one
    return [index for index in range(len(uuids)) if entry == str(index) or uuids[index].startswith(uuid)]
