"""Placement: on which node each process of a run starts, which devices it drives and which cores it is pinned to.

`hardware.hosts=[a:8,b:8]` names the nodes as mpirun takes them, in order, each with its slots. `hardware.bind` decides
the cores of the process of a device: `numa` takes cores of the device's own NUMA node, `far` those of the node farthest
from it (to see what that costs), `none` pins no process. CPU workers, and GPUs whose NUMA node is unknown, get cores in
the order of their numbers. Both threads of a core go to one process, as far as its number of threads is even. The cores
of a remote node are computed there, by the process that starts the rank: one thread of each core, as SLURM gives a task
with --hint=nomultithread, where there are enough cores, since its YAML counts cores.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.spec import CHIEF, Config, HardwareSpec, RankPlacement, RunSpec

CPUS_VARIABLE = "SCALEBENCH_CPUS"  # such as 0,1,2: for a worker whose place names no cores
# A name or an address, of IPv6 in brackets, and its slots.
HOST_PATTERN = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])(?::([1-9][0-9]{0,5}))?"
)
MAX_PARAMETER_SERVERS = 65_536


@dataclass(frozen=True)
class Placement:
    """The places of a run's processes, and what follows from them."""

    places: list[RankPlacement]
    devices_per_node: list[int]  # devices that the run drives on each node that it uses, in order
    in_sequence: bool  # a node is used only when those before it are full, whatever hardware.layout says
    shortage: str | None  # why the nodes do not hold so many devices, in a clause
    oversubscribed: bool  # a node has fewer cores than its processes need, or two processes share a core


def compute_placement(config: Config, gpus: int) -> Placement:
    """Place processes on the nodes as hardware.layout says, in contiguous blocks in the order of the nodes.

    `sequence` uses a node only when those before it are full. `spread` deals devices out over as many nodes as
    possible: counts differ by one at most, unless a node is full. Devices beyond the capacity of all nodes are placed
    on further nodes, and the placement has a shortage.

    Raise InputError where hardware.device_ids names too few devices, or something that is not a device.
    """
    if config.hardware.ports is not None:
        parse_ports(config.hardware.ports)
    hardware, one_for_all = config.hardware, config.strategy.processes == "one_for_all"
    capacities = _list_capacities(hardware, gpus)
    in_sequence: list[int] = []
    while (left := gpus - sum(in_sequence)) > 0:  # where there are too few nodes, on further ones like the last
        in_sequence.append(min(left, capacities[min(len(in_sequence), len(capacities) - 1)]))
    spread = hardware.layout == "spread" and sum(capacities) >= gpus and not one_for_all
    counts = _spread_evenly(capacities, gpus) if spread else in_sequence
    if one_for_all:
        ids = resolve_device_ids(hardware, gpus, gpus)
        cores_of_all = sorted({core for cores in assign_cores(hardware, ids) for core in cores})
        places = [RankPlacement(0, 0, 0, ids, cores_of_all, hardware.cpus_per_device or 1)]
    else:
        places = _place_process_per_device(config, counts)
    wanted_cores, cores = max(counts) * (hardware.cpus_per_device or 1), hardware.cpus_per_node or max(counts)
    quota = machine.cpu_quota() if hardware.this_machine else None
    max_processes = max(Counter(place.node for place in places).values())
    pinned = [(place.node, core) for place in places for core in place.cpus]
    return Placement(
        places,
        counts,
        in_sequence=counts == in_sequence,
        shortage=_find_shortage(config, gpus, capacities, len(counts)),
        oversubscribed=wanted_cores > min(cores, quota or cores)
        or max_processes > (hardware.cpus_per_node or max_processes)
        or len(set(pinned)) < len(pinned),
    )


def _place_process_per_device(config: Config, counts: list[int]) -> list[RankPlacement]:
    hardware = config.hardware
    threads = hardware.cpus_per_device or 1
    ids = resolve_device_ids(hardware, sum(counts), max(counts))
    # Processes that drive no device come first, and run on the cores that the others leave free.
    places = [
        RankPlacement(rank, rank, 0, [], [], threads, role) for rank, role in enumerate(_list_service_roles(config))
    ]
    services = len(places)
    role = "worker" if services else ""
    for node, count in enumerate(counts):
        cores = assign_cores(hardware, ids[:count])
        for position in range(count):
            local_rank = position + (services if node == 0 else 0)
            places.append(RankPlacement(len(places), local_rank, node, [ids[position]], cores[position], threads, role))
    return places


def _list_service_roles(config: Config) -> list[str]:
    """List the roles of the processes that drive no device, the chief first. Raise InputError where
    strategy.processes is wrong."""
    match config.strategy.processes:
        case "one_per_device":
            return []
        case {"roles": {"chief": 1, "ps": int(servers), "worker": "gpus", **more}} if (
            not more and 1 <= servers <= MAX_PARAMETER_SERVERS
        ):
            return [CHIEF, *["ps"] * servers]
    raise InputError(
        f"strategy.processes={config.strategy.processes} should be one_per_device, one_for_all or "
        "{roles: {chief: 1, ps: a count, worker: gpus}}"
    )


def _list_capacities(hardware: HardwareSpec, gpus: int) -> list[int]:
    """List how many devices each node holds, for the nodes that the run may use."""
    # Hosts with too few slots have a shortage, which `_find_shortage` explains.
    if hardware.hosts and find_slot_shortage(hardware.hosts, gpus) is None:
        return [slots for _, slots in parse_hosts(hardware.hosts)]
    is_one_host = hardware.devices == "cpu" and hardware.max_nodes == 1  # more CPU workers than cores are allowed there
    capacity = gpus if is_one_host else 0
    return [max(hardware.gpus_per_node or gpus, capacity)] * min(hardware.max_nodes, gpus)


def _spread_evenly(capacities: list[int], gpus: int) -> list[int]:
    """Return the devices on each node when every node that is not full gets one in turn. Nodes without any are left
    out."""
    counts, left = [0] * len(capacities), gpus
    while left:
        for node in [node for node, capacity in enumerate(capacities) if counts[node] < capacity][:left]:
            counts[node] += 1
            left -= 1
    return [count for count in counts if count]


def _find_shortage(config: Config, gpus: int, capacities: list[int], nodes: int) -> str | None:
    """Explain why the nodes do not hold so many devices; None where they do, or one process drives all of them."""
    hardware = config.hardware
    if hardware.hosts:
        return find_slot_shortage(hardware.hosts, gpus)
    if config.strategy.processes == "one_for_all" or gpus <= sum(capacities):
        return None
    per_node = hardware.gpus_per_node
    has = f"{hardware.max_nodes} of {per_node} devices each" if per_node else f"{hardware.max_nodes}"
    return f"gpus={gpus} asks for {nodes} nodes, hardware={hardware.name} has {has}"


def resolve_device_ids(hardware: HardwareSpec, gpus: int, per_node: int) -> list[int]:
    """Return the devices of a node in order: hardware.device_ids, or the first ones. Raise InputError where the ids
    make no sense."""
    ids, listed = hardware.device_ids, f"hardware.device_ids=[{','.join(map(str, hardware.device_ids))}]"
    if negative := [number for number in ids if number < 0]:
        raise InputError(f"{listed}: there is no device {negative[0]}; the first one is 0")
    if repeated := [number for position, number in enumerate(ids) if number in ids[:position]]:
        raise InputError(f"{listed} names device {repeated[0]} twice; name each once")
    if ids and per_node > len(ids):
        needs = f"{per_node} device{'s' if per_node > 1 else ''} a node"
        raise InputError(
            f"gpus={gpus} needs {needs}, hardware.device_ids names {len(ids)}; name more of them or lower gpus"
        )
    return ids[:per_node] or list(range(per_node))


def parse_hosts(hosts: Sequence[str]) -> list[tuple[str, int]]:
    """Parse hardware.hosts into (name, slots); a host without a number has one slot, as for mpirun. Raise InputError
    for a host that cannot be read, or that is named twice."""
    slots: dict[str, int] = {}
    for host in hosts:
        match = HOST_PATTERN.fullmatch(host)
        if match is None:
            raise InputError(f"hardware.hosts: '{host}' should be NAME:SLOTS, such as node1:8 or [2001:db8::1]:8")
        name = match[1].strip("[]")
        if name in slots:
            raise InputError(f"hardware.hosts names {name} twice; add up its slots")
        slots[name] = int(match[2] or 1)
    return list(slots.items())


def parse_ports(ports: str) -> range:
    """Return the ports of LOW-HIGH; raise InputError for other text."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", ports)
    if match is None or not 1024 <= int(match[1]) <= int(match[2]) < 65_536:
        raise InputError(f"hardware.ports: '{ports}' should be LOW-HIGH within 1024-65535, such as 20000-20999")
    return range(int(match[1]), int(match[2]) + 1)


def find_slot_shortage(hosts: Sequence[str], ranks: int) -> str | None:
    """Explain in a clause why so many ranks do not fit on the hosts; None where they do, or no hosts are named."""
    slots = sum(slots for _, slots in parse_hosts(hosts))
    if not hosts or ranks <= slots:
        return None
    return f"hardware.hosts has {slots} slots for {ranks} processes; give the hosts more slots or lower gpus"


def list_hostnames(hosts: Sequence[str], places: Sequence[RankPlacement]) -> list[str]:
    """List the host of each process, the first host being node 0; this machine where no hosts are named."""
    names = [name for name, _ in parse_hosts(hosts)] or ["localhost"]
    return [names[place.node] for place in places]


def assign_cores(hardware: HardwareSpec, devices: Sequence[int], whole_cores: bool = False) -> list[list[int]]:
    """Assign cores to each of these devices of one node, one for each of its threads; an empty list means not pinned.

    No core is assigned twice while there are enough for all. `whole_cores` counts cores and not their threads, where
    that suffices: each process gets one thread of a core and leaves the others idle.
    """
    if hardware.bind == "none" or not hardware.this_machine:
        return [[] for _ in devices]
    cores, threads = machine.order_by_core(machine.usable_cpus()), hardware.cpus_per_device or 1
    if whole_cores and len(first := machine.first_threads(cores)) >= len(devices) * threads:
        cores = first
    candidates = _candidate_cores(hardware, devices, cores)
    if candidates is None:
        return [_slice_cores(cores, device, threads) for device in devices]
    # The place of each device among those with the same candidates.
    positions = [candidates[:number].count(own) for number, own in enumerate(candidates)]
    assigned = [_slice_cores(own, position, threads) for own, position in zip(candidates, positions, strict=True)]
    if hardware.bind == "far":
        return assigned
    # Cores that are left over go to the processes whose own NUMA node has none left.
    without = [number for number, own in enumerate(candidates) if (positions[number] + 1) * threads > len(own)]
    taken = {core for number, own in enumerate(assigned) if number not in without for core in own}
    for number in without:
        free = [core for core in dict.fromkeys([*candidates[number], *cores]) if core not in taken]
        if len(free) >= threads:
            assigned[number] = sorted(free[:threads])
            taken |= set(assigned[number])
    return assigned


def find_binding_problem(hardware: HardwareSpec, devices: Sequence[int]) -> str | None:
    """Explain in a clause why `hardware.bind=far` means nothing on this machine, which is the one of the run."""
    if hardware.bind != "far":
        return None
    if hardware.devices == "cpu":
        return "hardware.bind=far puts a process far from its GPU, and CPU workers have none; use numa or none"
    cores = set(machine.usable_cpus())
    nodes = [node.node for node in machine.numa_nodes() if cores & set(node.cpus)]
    if len(nodes) < 2:
        return "hardware.bind=far needs cores on a second NUMA node, and this machine has one; use numa or none"
    if _candidate_cores(hardware, devices, sorted(cores)) is None:
        return "hardware.bind=far needs GPUs whose NUMA node is known, and here it is not; use numa or none"
    return None


def _slice_cores(cores: Sequence[int], number: int, threads: int) -> list[int]:
    """Return the `number`-th slice of `threads` cores, wrapping around."""
    return sorted({cores[(number * threads + i) % len(cores)] for i in range(threads)})


def _candidate_cores(hardware: HardwareSpec, devices: Sequence[int], cores: Sequence[int]) -> list[list[int]] | None:
    """Return the usable cores of the NUMA node that each device takes its share of, which is its own or with bind=far
    the farthest one that has any; None where any of the nodes is unknown."""
    gpu_nodes = machine.gpu_numa_nodes() if hardware.devices == "cuda" else []
    nodes = {numa.node: numa for numa in machine.numa_nodes()}
    candidates = []
    for device in devices:
        own = gpu_nodes[device] if device < len(gpu_nodes) else None
        if own not in nodes:
            return None
        distances = {
            other: (other != own, nodes[own].distances.get(str(other), 255), abs(other - own)) for other in nodes
        }
        usable = [
            [core for core in cores if core in nodes[other].cpus] for other in sorted(nodes, key=distances.__getitem__)
        ]
        with_cores = [node_cores for node_cores in usable if node_cores]
        if not with_cores:
            return None
        candidates.append(with_cores[-1 if hardware.bind == "far" else 0])
    return candidates


def make_cpus_variable(spec: RunSpec, rank: int) -> dict[str, str]:
    """Return the variable with the cores of a rank on this host; none where its place has them, or it is not pinned."""
    cores = [] if spec.places[rank].cpus else assign_cores_on_this_node(spec)[rank]
    return {CPUS_VARIABLE: ",".join(map(str, cores))} if cores else {}


def read_cpus_variable(variables: Mapping[str, str]) -> list[int]:
    """Return the cores that `make_cpus_variable` set."""
    return [int(number) for number in variables.get(CPUS_VARIABLE, "").split(",") if number]


def assign_cores_on_this_node(spec: RunSpec) -> list[list[int]]:
    """Return the cores of each rank as if this were its node; none for one that drives no device, or is not pinned.

    They are among those that this process may use: SLURM gives a job no more of a node than it asked for.
    """
    hardware = spec.config.hardware
    if hardware.this_machine:
        return [[] for _ in spec.places]
    hardware = dataclasses.replace(hardware, this_machine=True)
    cores_of: list[list[int]] = [[] for _ in spec.places]
    for node in {place.node for place in spec.places}:
        owners = [(place.rank, device) for place in spec.places if place.node == node for device in place.devices]
        numbers = [device for _, device in owners]
        wanted = (max(numbers, default=0) + 1) * (hardware.cpus_per_device or 1)
        if hardware.devices != "cuda" and wanted > len(machine.first_threads(machine.usable_cpus())):
            # CPU workers are interchangeable, and the n-th takes the n-th slice: numbers with gaps would put two on the
            # same cores where there are fewer cores than the node has.
            numbers = list(range(len(numbers)))
        for (rank, _), cores in zip(owners, assign_cores(hardware, numbers, whole_cores=True), strict=True):
            cores_of[rank] = sorted({*cores_of[rank], *cores})
    return cores_of
