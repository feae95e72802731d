"""The GPUs of this machine as NVML reports them, how they are connected, and which of them a process would see.

NVML may be missing, old, or refuse an answer. Nothing here raises because of that: what cannot be determined is None
(or left out), never 0.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from scalebench.core.machine import cpus, cuda_builds

T = TypeVar("T")
NvmlQuery = Callable[..., Any]


def value_or_none(function: Callable[[], T]) -> T | None:
    """Return the result, or None where the call raises: no fact about the machine is worth a failed run."""
    try:
        return function()
    except Exception:
        return None


def open_nvml() -> Any:
    """Initialize NVML and return pynvml. Raises ImportError or an NVMLError of pynvml."""
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml


@contextmanager
def nvml_queries() -> Iterator[NvmlQuery]:
    """Yield a function that calls NVML by name; it returns None where that fails, and always without NVML."""
    opened: Any = None
    with suppress(Exception):
        opened = open_nvml()

    def ask(name: str, *args: Any) -> Any:
        value = value_or_none(lambda: getattr(opened, name)(*args))
        return _to_text(value) if isinstance(value, bytes) else value

    try:
        yield ask
    finally:
        ask("nvmlShutdown")


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# Values of nvml.h, fixed by its binary interface.
SM_CLOCK, MEM_CLOCK, SLOWDOWN = 1, 2, 1
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
MAX_NVLINKS, LINK_ACTIVE, GPU_TYPE, IBM_CPU_TYPE = 36, 1, 0, 1
# The names in `nvidia-smi topo -m`; 0 is one board with two GPUs, which it shows as PIX as well.
ANCESTOR_NAMES = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# As in `nvidia-smi topo -p2p`: not with this chipset, GPU, topology; disabled in the registry; not at all; unknown.
PEER_STATES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
PEER_KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}

PairMatrix = list[list[str]]


def detect_topology(ask: NvmlQuery, handles: Sequence[Any], addresses: Sequence[str | None]) -> PairMatrix | None:
    """Return how each pair of GPUs is connected; None without GPUs, or where the answer for a pair is missing."""
    links = [_count_nvlinks(ask, handle) for handle in handles]

    def connection(a: int, b: int) -> str:
        # Linked to each other, or both to NVSwitches, which connect all with all.
        nvlinks = links[a][addresses[b] or ""] or min(links[a]["switch"], links[b]["switch"])
        ancestor = ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        return f"NV{nvlinks}" if nvlinks else ANCESTOR_NAMES.get(ancestor, "")

    return _pair_matrix(len(handles), connection)


def detect_peer_access(ask: NvmlQuery, handles: Sequence[Any]) -> dict[str, PairMatrix] | None:
    """Return what the GPU of a row may do in the memory of the GPU of a column, one matrix for each of PEER_KINDS.

    OK means allowed. Kinds that the driver does not report are left out; None where it reports none.
    """

    def state(number: int, a: int, b: int) -> str:
        return PEER_STATES.get(ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], number), "")

    matrices = {kind: _pair_matrix(len(handles), partial(state, number)) for kind, number in PEER_KINDS.items()}
    return {kind: matrix for kind, matrix in matrices.items() if matrix is not None} or None


def pairs_by_link(topology: PairMatrix) -> dict[str, list[tuple[int, int]]]:
    """Return the pairs of GPUs by their connection, the lower number first, in the order of each kind's first pair."""
    pairs: dict[str, list[tuple[int, int]]] = {}
    for a, row in enumerate(topology):
        for b in range(a + 1, len(row)):
            pairs.setdefault(row[b], []).append((a, b))
    return pairs


def _pair_matrix(size: int, text_of_pair: Callable[[int, int], str]) -> PairMatrix | None:
    rows = [["X" if a == b else text_of_pair(a, b) for b in range(size)] for a in range(size)]
    return rows if rows and all(map(all, rows)) else None


def _count_nvlinks(ask: NvmlQuery, handle: Any) -> Counter[str]:
    """Count the active NVLinks of a GPU by the PCI address of the other end, or 'switch'.

    In virtual machines NVML does not identify the other end where it is an NVSwitch, which only the host sees
    (NVIDIA/nccl issue 1182). Such a link counts as one to a switch, as NCCL and `nvidia-smi topo -m` have it.
    """
    peers = []
    for link in range(MAX_NVLINKS):
        if ask("nvmlDeviceGetNvLinkState", handle, link) == LINK_ACTIVE:
            remote_type = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)  # None: an older driver
            address = getattr(ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link), "busId", None)
            is_named = remote_type is None and address is not None and not address.startswith("FFFF")
            peers.append(address if is_named or remote_type in (GPU_TYPE, IBM_CPU_TYPE) else "switch")
    return Counter(peer for peer in peers if peer)


def _of_query(name: str, *arguments: int, read: Callable[[Any], Any] = lambda answer: answer) -> Any:
    """Declare a field that `read` takes from the answer of NVML's query nvmlDeviceGet<name>; None where it refuses."""
    return field(default=None, metadata={"query": (name, arguments, read)})


def _watts(milliwatts: float) -> float:
    return milliwatts / 1000


def _first_bool(states: Sequence[int]) -> bool:
    return bool(states[0])  # what is in force; what is pending comes second


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML reports it; a field that NVML refuses is None. `index` is NVML's (PCI bus order)."""

    index: int
    name: str | None = _of_query("Name")
    uuid: str | None = _of_query("UUID")
    memory_bytes: int | None = _of_query("MemoryInfo", read=lambda memory: memory.total or None)
    sm_clock_max_mhz: int | None = _of_query("MaxClockInfo", SM_CLOCK)
    mem_clock_max_mhz: int | None = _of_query("MaxClockInfo", MEM_CLOCK)
    power_limit_w: float | None = _of_query("EnforcedPowerLimit", read=_watts)  # may be below the card's own
    numa_node: int | None = None
    pci_bus_id: str | None = _of_query("PciInfo", read=lambda info: _to_text(info.busId))
    # These are the clocks at the time of the query, those requested for programs, and theirs unless others are.
    sm_clock_mhz: int | None = _of_query("ClockInfo", SM_CLOCK)
    mem_clock_mhz: int | None = _of_query("ClockInfo", MEM_CLOCK)
    sm_clock_application_mhz: int | None = _of_query("ApplicationsClock", SM_CLOCK)
    mem_clock_application_mhz: int | None = _of_query("ApplicationsClock", MEM_CLOCK)
    sm_clock_default_mhz: int | None = _of_query("DefaultApplicationsClock", SM_CLOCK)
    mem_clock_default_mhz: int | None = _of_query("DefaultApplicationsClock", MEM_CLOCK)
    # The range in which an administrator can set the limit.
    power_limit_min_w: float | None = _of_query("PowerManagementLimitConstraints", read=lambda range: _watts(range[0]))
    power_limit_max_w: float | None = _of_query("PowerManagementLimitConstraints", read=lambda range: _watts(range[1]))
    power_limit_default_w: float | None = _of_query("PowerManagementDefaultLimit", read=_watts)
    slowdown_temperature_c: int | None = _of_query("TemperatureThreshold", SLOWDOWN)  # the GPU throttles from here on
    mig: bool | None = _of_query("MigMode", read=_first_bool)  # split into instances
    ecc: bool | None = _of_query("EccMode", read=_first_bool)
    compute_mode: str | None = _of_query("ComputeMode", read=COMPUTE_MODES.get)
    persistence: bool | None = _of_query("PersistenceMode", read=bool)  # the driver stays loaded without a program
    pcie_generation: int | None = _of_query("CurrPcieLinkGeneration")  # now: an idle link may have slowed down
    pcie_generation_max: int | None = _of_query("MaxPcieLinkGeneration")
    pcie_width: int | None = _of_query("CurrPcieLinkWidth")  # lanes
    pcie_width_max: int | None = _of_query("MaxPcieLinkWidth")
    compute_capability: str | None = _of_query("CudaComputeCapability", read=lambda parts: ".".join(map(str, parts)))


@dataclass(frozen=True)
class GpuFacts:
    """All GPUs that NVML shows, whatever CUDA_VISIBLE_DEVICES hides, their connections and their driver."""

    gpus: list[Gpu]
    topology: list[list[str]] | None  # by GPU pair: X, NV#, PIX, PXB, PHB, NODE, SYS
    driver_version: str | None
    cuda_driver_version: str | None
    peer_access: dict[str, list[list[str]]] | None = None  # read, write, nvlink, atomics: by GPU pair, OK is yes


def detect_gpus() -> GpuFacts:
    """Query NVML for everything once; milliseconds, longer where the GPU driver has to wake up."""
    with nvml_queries() as ask:
        handles = _handles(ask)
        gpus = [_detect_gpu(ask, index, handle) for index, handle in enumerate(handles)]
        topology = detect_topology(ask, handles, [gpu.pci_bus_id for gpu in gpus])
        peers = detect_peer_access(ask, handles)
        driver, cuda = ask("nvmlSystemGetDriverVersion"), ask("nvmlSystemGetCudaDriverVersion_v2")
    return GpuFacts(gpus, topology, driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}", peers)


def visible_gpus() -> list[int | None]:
    """Return NVML's numbers of the GPUs that a process started now would see, in the order in which it numbers them.

    These are the ones in CUDA_VISIBLE_DEVICES, in its order; CUDA numbers GPUs as NVML does with
    CUDA_DEVICE_ORDER=PCI_BUS_ID, which the launchers set. None stands for a part of a GPU and for an AMD GPU.
    """
    with nvml_queries() as ask:
        return _visible_indices(ask) or [None] * count_amd_gpus()


def find_nvml_problem() -> str | None:
    """Return in a clause why NVML does not answer where the driver's device files show GPUs; None where it answers, or
    there are none.

    The driver may have been updated since the machine started, or a container may have been given the GPUs without the
    library (NVIDIA_DRIVER_CAPABILITIES=compute).
    """
    if not any(cpus.SYSTEM_ROOT.glob("dev/nvidia[0-9]*")):
        return None
    try:
        open_nvml().nvmlShutdown()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@dataclass(frozen=True)
class GpuRoom:
    """The room of one GPU for one more process; None where NVML does not report it."""

    free_bytes: int | None
    total_bytes: int | None
    compute_mode: str | None


def read_gpu_room() -> list[GpuRoom]:
    """Return the room on each GPU that a process started now would see; empty without NVML."""
    with nvml_queries() as ask:
        handles, room = _handles(ask), []
        for index in _visible_indices(ask):
            memory = None if index is None else ask("nvmlDeviceGetMemoryInfo", handles[index])
            mode = None if index is None else COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode", handles[index]))
            room.append(GpuRoom(getattr(memory, "free", None), getattr(memory, "total", None) or None, mode))
        return room


def find_hidden_gpus() -> str | None:
    """Return in a clause that CUDA_VISIBLE_DEVICES shows a process none of the GPUs that NVML shows; None where it sees
    one, or there are none."""
    with nvml_queries() as ask:
        count, setting = len(_handles(ask)), os.environ.get(VISIBLE_DEVICES)
        if not count or setting is None or _visible_indices(ask):
            return None
    gpus = "the GPU" if count == 1 else f"all {count} GPUs"
    return f"CUDA_VISIBLE_DEVICES={setting or chr(39) * 2} hides {gpus} of this machine"


def has_chosen_no_gpu() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES says that no GPU is wanted, rather than naming one that there is not."""
    return os.environ.get(VISIBLE_DEVICES, "0").strip() in ("", "-1", "NoDevFiles")  # SLURM's, of a job without GPUs


AMD_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", VISIBLE_DEVICES)  # each among those of the one before


def count_amd_gpus() -> int:
    """Return how many AMD GPUs a process started now would see as its `cuda` devices: 0 unless PyTorch is a build for
    ROCm. Their driver lists them beside the processors, which have no SIMD units (Linux, sysfs of amdkfd)."""
    if "rocm" not in (cuda_builds.read_torch_version("__version__") or ""):
        return 0
    nodes = cpus.SYSTEM_ROOT.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    count = sum(re.search(r"^simd_count [1-9]", node.read_text(), re.MULTILINE) is not None for node in nodes)
    for variable in filter(os.environ.__contains__, AMD_VISIBLE):
        entries, numbers = map(str.strip, os.environ[variable].split(",")), {str(number) for number in range(count)}
        count = sum(1 for _ in takewhile(lambda entry: entry.startswith("GPU-") or entry in numbers, entries))  # noqa: B023
    return count


def find_unsupported_gpus() -> str | None:
    """Return in a clause which GPUs there are that no run can use: AMD's, by the device file of their driver, where
    PyTorch is not a build for them or none is visible. None where there are none."""
    if not (cpus.SYSTEM_ROOT / "dev/kfd").exists() or count_amd_gpus():
        return None
    if "rocm" in (version := cuda_builds.read_torch_version("__version__") or ""):
        hides = [f"{variable}={os.environ[variable]}" for variable in AMD_VISIBLE if variable in os.environ]
        return f"AMD GPUs (/dev/kfd), which PyTorch does not see ({' '.join(hides) or 'their driver lists none'})"
    build = f"torch {version} is a build without ROCm" if version else "PyTorch is not installed"
    return f"AMD GPUs (/dev/kfd), and {build}: https://pytorch.org/get-started lists those with it"


def choose_visible_gpus(devices: Sequence[int], visible: int) -> list[int]:
    """Return the numbers by which a process calls its GPUs, which are these devices of its node.

    A process that is to have one GPU and sees one takes it: SLURM (--gpus-per-task, --gpu-bind) or a
    CUDA_VISIBLE_DEVICES for each rank has chosen it already, and CUDA calls it 0. `visible` is how many it sees.
    """
    return [0] if len(devices) == visible == 1 else list(devices)


def name_visible_gpus(devices: Sequence[int]) -> list[str | None]:
    """Return name and UUID of the GPUs that this process takes for these devices, such as `NVIDIA H100 GPU-1b2c...`;
    None for a part of a GPU and where NVML does not answer.

    What a number means depends on CUDA_VISIBLE_DEVICES and on the order in which CUDA counts.
    """
    visible, gpus = visible_gpus(), detect_gpus().gpus
    chosen = choose_visible_gpus(devices, len(visible))
    indices = [visible[device] if device < len(visible) else None for device in chosen]
    named = [None if index is None else gpus[index] for index in indices]
    return [f"{gpu.name} {gpu.uuid}" if gpu is not None and gpu.name and gpu.uuid else None for gpu in named]


def count_gpus() -> int:
    """Return how many GPUs a process started now would see."""
    return len(visible_gpus())


def gpu_numa_nodes() -> list[int | None]:
    """Return the NUMA node of each GPU that a process started now would see."""
    gpus = detect_gpus().gpus
    return [None if index is None else gpus[index].numa_node for index in visible_gpus()]


def pair_of_each_link() -> list[tuple[int, int]]:
    """Return a pair of GPUs, as a process numbers them, for each kind of connection; empty where that is unknown."""
    matrix, visible = detect_gpus().topology, [index for index in visible_gpus() if index is not None]
    topology = [] if matrix is None else [[matrix[a][b] for b in visible] for a in visible]
    return [pairs[0] for pairs in pairs_by_link(topology).values()]


def _handles(ask: NvmlQuery) -> list[Any]:
    return [ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0)]


def _detect_gpu(ask: NvmlQuery, index: int, handle: Any) -> Gpu:
    facts: dict[str, Any] = {}
    for each in fields(Gpu):
        if "query" in each.metadata:
            name, arguments, read = each.metadata["query"]
            answer = ask(f"nvmlDeviceGet{name}", handle, *arguments)
            facts[each.name] = None if answer is None else value_or_none(partial(read, answer))
    # The NUMA node by sysfs, whose domains have four digits: NVML has a call for GPUs alone that are such a node.
    address = re.fullmatch(r"([0-9a-f]+)(:.+)", (facts["pci_bus_id"] or "").lower())
    folder = "" if address is None else f"{int(address[1], 16):04x}{address[2]}"
    node = cpus.read_system_number("sys/bus/pci/devices", folder, "numa_node")
    return Gpu(index, numa_node=None if node is None or node < 0 else node, **facts)  # -1: the firmware does not say


def _to_text(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text  # bytes: older pynvml


def _visible_indices(ask: NvmlQuery) -> list[int | None]:
    """Read CUDA_VISIBLE_DEVICES as CUDA does: up to the first invalid entry, and none if an entry occurs twice.

    Of GPUs that are all split into instances a process sees one instance; beside other GPUs these are the ones it sees.
    Source: NVIDIA Multi-Instance GPU User Guide, "CUDA Device Enumeration".
    """
    handles = _handles(ask)
    setting = os.environ.get(VISIBLE_DEVICES)
    if setting is None:
        is_split = [bool((ask("nvmlDeviceGetMigMode", handle) or [0])[0]) for handle in handles]
        return [None] if handles and all(is_split) else [index for index, split in enumerate(is_split) if not split]
    uuids = [str(ask("nvmlDeviceGetUUID", handle)) for handle in handles]
    chosen: list[int | None] = []
    for entry in map(str.strip, setting.split(",")):  # an index, or a UUID or its beginning
        if entry.startswith("MIG-"):  # a process sees one MIG instance at most
            return [None] if ask("nvmlDeviceGetHandleByUUID", entry) is not None else []
        prefix = entry if entry.startswith("GPU-") else "no UUID"
        matches = [index for index, uuid in enumerate(uuids) if entry == str(index) or uuid.startswith(prefix)]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen += matches
    return chosen
