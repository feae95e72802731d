"""Which process stands on which node, drives which devices and is pinned to which cores. Layer 2.

Which cores go to the process of which device: `hardware.bind`. Layer 2.

numa: cores of the NUMA node that the device hangs from. far: of the node farthest from it, to see what that costs.
none: no process is pinned. CPU workers, and GPUs of which nobody tells the node, get cores in the order of their
numbers.

The hosts of a run, as mpirun takes them: `hardware.hosts=[a:8,b:8]`, in order, each with its slots. Layer 0.

CPU binding for remote nodes, computed on the node itself. Layer 2.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalebench.config import validate
from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.spec import CHIEF, Config, HardwareSpec, Place, RunSpec


def shares(hardware: HardwareSpec, devices: Sequence[int]) -> list[list[int]]:
    """The cores of each of these devices of one node, so many for each as it has threads; none means not pinned.

    No core is given twice while there are enough for all.
    """
    cores, threads = machine.usable_cpus() if hardware.this_machine else [], hardware.cpus_per_device or 1
    if hardware.bind == "none" or not cores:
        return [[] for _ in devices]
    ranges = _ranges(hardware, devices, cores)
    if ranges is None:
        return [_window(cores, device, threads) for device in devices]
    before = [ranges[:number].count(own) for number, own in enumerate(ranges)]  # of those who want the same cores
    found = [_window(own, number, threads) for own, number in zip(ranges, before, strict=True)]
    if hardware.bind == "numa":
        _spread(found, ranges, before, cores, threads)
    return found


def obstacle(hardware: HardwareSpec, devices: Sequence[int]) -> str | None:
    """Why `hardware.bind=far` means nothing on this machine, which is the one of the run, in a clause."""
    if hardware.bind != "far":
        return None
    if hardware.devices == "cpu":
        return "hardware.bind=far puts a process far from its GPU, and CPU workers have none; use numa or none"
    cores = set(machine.usable_cpus())
    nodes = [node.node for node in machine.numa_nodes() if cores & set(node.cpus)]
    if len(nodes) < 2:
        return "hardware.bind=far needs cores on a second NUMA node, and here is one node; use numa or none"
    if _ranges(hardware, devices, sorted(cores)) is None:
        return "hardware.bind=far needs GPUs whose NUMA node is known, and here it is not; use numa or none"
    return None


def _window(cores: Sequence[int], number: int, threads: int) -> list[int]:
    """The `number`-th part of the cores, from the beginning again after their end."""
    return sorted({cores[(number * threads + i) % len(cores)] for i in range(threads)})


def _ranges(hardware: HardwareSpec, devices: Sequence[int], cores: Sequence[int]) -> list[list[int]] | None:
    """The cores that each device is to have its share of; None where there is nothing to go by."""
    nodes = machine.gpu_numa_nodes() if hardware.devices == "cuda" else []
    near = [nodes[device] if device < len(nodes) else None for device in devices]
    found = [None if node is None else _by_distance(node, cores) for node in near]
    known = [told for told in found if told]
    if len(known) < len(devices):
        return None
    return [told[-1 if hardware.bind == "far" else 0] for told in known]


def _by_distance(node: int, cores: Sequence[int]) -> list[list[int]]:
    """The usable cores of each NUMA node that has any, the nearest node first."""
    everyone = {found.node: found for found in machine.numa_nodes()}
    if node not in everyone:
        return []
    away = everyone[node].distances
    ordered = sorted(everyone.values(), key=lambda other: (away.get(str(other.node), 255), abs(other.node - node)))
    ordered = sorted(ordered, key=lambda other: other.node != node)
    there = [[core for core in found.cpus if core in set(cores)] for found in ordered]
    return [own for own in there if own]


def _spread(
    found: list[list[int]],
    ranges: Sequence[list[int]],
    before: Sequence[int],
    cores: Sequence[int],
    threads: int,
) -> None:
    """Cores that are left over go to the processes for which their own node has none left."""
    full = [number for number, own in enumerate(ranges) if (before[number] + 1) * threads > len(own)]
    taken = {core for number, own in enumerate(found) if number not in full for core in own}
    for number in full:
        own = ranges[number]
        free = [core for core in own if core not in taken] + [c for c in cores if c not in taken and c not in own]
        if len(free) >= threads:
            found[number] = sorted(free[:threads])
            taken |= set(found[number])


HOST = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::([1-9][0-9]{0,5}))?")


def parse(hosts: Sequence[str]) -> list[tuple[str, int]]:
    """(name, slots) of each; one slot where none is given, as mpirun has it. InputError names what is wrong."""
    found: list[tuple[str, int]] = []
    for host in hosts:
        match = HOST.fullmatch(host)
        if match is None:
            raise InputError(f"hardware.hosts: '{host}' should be NAME:SLOTS, such as node1:8")
        if match[1] in dict(found):
            raise InputError(f"hardware.hosts names {match[1]} twice; add up its slots")
        found.append((match[1], int(match[2] or 1)))
    return found


def shortage(hosts: Sequence[str], ranks: int) -> str | None:
    """Why so many ranks do not fit on the hosts, in a clause; None where they do, or no hosts are named."""
    slots = sum(slots for _, slots in parse(hosts))
    if not hosts or ranks <= slots:
        return None
    return f"hardware.hosts has {slots} slots for {ranks} processes; give the hosts more slots or lower gpus"


def of_places(hosts: Sequence[str], places: Sequence[Place]) -> list[str]:
    """The name of the host of each process: the first host is node 0. This machine where no hosts are named."""
    names = [name for name, _ in parse(hosts)] or ["localhost"]
    return [names[place.node] for place in places]


MAX_SERVERS = 65_536


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run stand, and what follows from that."""

    places: list[Place]
    devices_per_node: list[int]  # that the run drives on each node that it uses, in order
    in_sequence: bool  # a second node comes only when the first is full, whatever hardware.layout says
    shortage: str | None  # why the nodes do not hold so many devices, in a clause
    oversubscribed: bool  # a node has fewer cores than its processes want, or two processes have one in common


def place(config: Config, gpus: int) -> Placement:
    """Place processes on the nodes as hardware.layout says, in contiguous blocks in the order of the nodes.

    In sequence, a second node comes only when the first is full. Spread, devices are dealt out over as many nodes as
    there may be, one more on some than on others, or fewer where a node holds no more. Devices that all nodes together
    do not hold stand on further nodes, and there is a shortage.

    InputError where hardware.device_ids names too few devices, or what is no device.
    """
    hardware, one_for_all = config.hardware, config.strategy.processes == "one_for_all"
    rooms = _rooms(hardware, gpus)
    in_sequence = _filled(rooms, gpus)
    spread = hardware.layout == "spread" and sum(rooms) >= gpus and not one_for_all
    counts = _dealt(rooms, gpus) if spread else in_sequence
    places = [_for_all_devices(hardware, gpus)] if one_for_all else _for_each_device(config, counts)
    wanted_cores = max(counts) * (hardware.cpus_per_device or 1)
    return Placement(
        places,
        counts,
        in_sequence=counts == in_sequence,
        shortage=_shortage(config, gpus, rooms, len(counts)),
        oversubscribed=wanted_cores > (hardware.cpus_per_node or max(counts)) or _crowded(hardware, places),
    )


def _for_all_devices(hardware: HardwareSpec, gpus: int) -> Place:
    ids = device_ids(hardware, gpus, gpus)
    cores = sorted({core for share in shares(hardware, ids) for core in share})
    return Place(0, 0, 0, ids, cores, hardware.cpus_per_device or 1)


def _for_each_device(config: Config, counts: list[int]) -> list[Place]:
    hardware = config.hardware
    threads = hardware.cpus_per_device or 1
    ids = device_ids(hardware, sum(counts), max(counts))
    # What drives no device comes first, and takes the cores that the others leave.
    places = [Place(rank, rank, 0, [], [], threads, role) for rank, role in enumerate(_without_device(config))]
    others = len(places)
    role = "worker" if others else ""
    for node, count in enumerate(counts):
        shares_ = shares(hardware, ids[:count])
        for position in range(count):
            local_rank = position + (others if node == 0 else 0)
            devices = [ids[position]]
            places.append(Place(len(places), local_rank, node, devices, shares_[position], threads, role))
    return places


def _shortage(config: Config, gpus: int, rooms: list[int], nodes: int) -> str | None:
    """Why the nodes do not hold so many devices; None where they do, or one process takes all of them."""
    hardware = config.hardware
    if hardware.hosts:
        return shortage(hardware.hosts, gpus)
    if config.strategy.processes == "one_for_all" or gpus <= sum(rooms):
        return None
    each = hardware.gpus_per_node
    has = f"{hardware.max_nodes} of {each} devices each" if each else f"{hardware.max_nodes}"
    return f"gpus={gpus} asks for {nodes} nodes, hardware={hardware.name} has {has}"


def device_ids(hardware: HardwareSpec, gpus: int, per_node: int) -> list[int]:
    """The devices of a node, in order: hardware.device_ids, or the first ones. InputError where they make no sense."""
    ids = hardware.device_ids
    wrong = [number for number in ids if number < 0]
    if wrong:
        raise InputError(f"hardware.device_ids={_as_list(ids)}: there is no device {wrong[0]}; the first one is 0")
    twice = [number for position, number in enumerate(ids) if number in ids[:position]]
    if twice:
        raise InputError(f"hardware.device_ids={_as_list(ids)} names device {twice[0]} twice; name each once")
    if ids and per_node > len(ids):
        wants = f"{per_node} device{'s' if per_node > 1 else ''} a node"
        raise InputError(
            f"gpus={gpus} wants {wants}, hardware.device_ids names {len(ids)}; name more of them or lower gpus"
        )
    return ids[:per_node] or list(range(per_node))


def used_hardware(hardware: HardwareSpec, gpus: int, placement: Placement) -> HardwareSpec:
    """Keep what this run uses of the layout, devices and variables, so that equal runs are one run."""
    on_a_node = max(len(place.devices) for place in placement.places)
    return dataclasses.replace(
        hardware,
        layout="sequence" if placement.in_sequence else hardware.layout,
        device_ids=hardware.device_ids[: max(on_a_node, *placement.devices_per_node)],
        environment=validate.of_run(hardware, gpus),
    )


def _as_list(ids: list[int]) -> str:
    return f"[{','.join(map(str, ids))}]"


def _rooms(hardware: HardwareSpec, gpus: int) -> list[int]:
    """How many devices each node holds, of those that the run may have."""
    # Where hosts have too few slots, that is why there is a shortage.
    if hardware.hosts and shortage(hardware.hosts, gpus) is None:
        return [slots for _, slots in parse(hardware.hosts)]
    each = hardware.gpus_per_node or gpus
    if hardware.devices == "cpu" and hardware.max_nodes == 1:
        each = max(each, gpus)  # more CPU workers than cores are allowed, on one node
    return [each] * min(hardware.max_nodes, gpus)


def _filled(rooms: list[int], gpus: int) -> list[int]:
    """So many devices, one node after the other; nodes as the last one where they are too few."""
    counts: list[int] = []
    left = gpus
    while left:
        room = rooms[min(len(counts), len(rooms) - 1)]
        counts.append(min(room, left))
        left -= counts[-1]
    return counts


def _dealt(rooms: list[int], gpus: int) -> list[int]:
    """So many devices, one to each node in turn as long as it holds more; nodes that get none are left out."""
    counts, left = [0] * len(rooms), gpus
    while left:
        open_nodes = [node for node, room in enumerate(rooms) if counts[node] < room]
        # As many rounds at once as nobody is full before.
        least = min(rooms[node] - counts[node] for node in open_nodes)
        rounds = min(least, left // len(open_nodes))
        for node in open_nodes[: len(open_nodes) if rounds else left]:
            counts[node] += rounds or 1
            left -= rounds or 1
    return [count for count in counts if count]


def _without_device(config: Config) -> list[str]:
    """Roles of the processes that drive no device, the chief's first; InputError where strategy.processes is wrong."""
    wanted = config.strategy.processes
    if wanted == "one_per_device":
        return []
    roles = wanted.get("roles") if isinstance(wanted, dict) and set(wanted) == {"roles"} else None
    if not isinstance(roles, dict):
        raise InputError(f"strategy.processes={wanted} should be one_per_device, one_for_all or roles")
    if set(roles) != {CHIEF, "ps", "worker"} or roles[CHIEF] != 1 or roles["worker"] != "gpus":
        raise InputError(f"strategy.processes.roles={roles} should be chief: 1, ps: a count, worker: gpus")
    servers = roles["ps"]
    if not (isinstance(servers, int) and not isinstance(servers, bool) and 1 <= servers <= MAX_SERVERS):
        raise InputError(f"strategy.processes.roles.ps={servers} should be a count, at least 1")
    return [CHIEF, *["ps"] * servers]


def _crowded(hardware: HardwareSpec, places: list[Place]) -> bool:
    """Whether a node has more processes than cores, or two processes have a core in common."""
    fullest = max(Counter(place.node for place in places).values())
    cores = [(place.node, core) for place in places for core in place.cpus]
    return fullest > (hardware.cpus_per_node or fullest) or len(set(cores)) < len(cores)


CPUS = "SCALEBENCH_CPUS"  # for the worker, where its place has none: 0,1,2


def variable(spec: RunSpec, rank: int) -> dict[str, str]:
    """Return the variable with the cores of a rank on this host; none where its place has them, or it is not pinned."""
    cores = [] if spec.places[rank].cpus else pinning_shares(spec)[rank]
    return {CPUS: ",".join(map(str, cores))} if cores else {}


def cpus_from(variables: Mapping[str, str]) -> list[int]:
    """Return the cores that `variable` set."""
    return [int(word) for word in variables.get(CPUS, "").split(",") if word]


def pinning_shares(spec: RunSpec) -> list[list[int]]:
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
        parts = shares(hardware, _numbers(hardware.devices, hardware.cpus_per_device or 1, [d for _, d in owners]))
        for (rank, _), cores in zip(owners, parts, strict=True):
            cores_of[rank] = sorted({*cores_of[rank], *cores})
    return cores_of


def _numbers(kind: str, threads: int, devices: list[int]) -> list[int]:
    """Return the devices as binding counts them. CPU workers are interchangeable, and the n-th takes the n-th part:
    numbers with gaps would put two on the same cores where there are fewer cores than the node has."""
    fits = (max(devices, default=0) + 1) * threads <= len(machine.usable_cpus())
    return devices if kind == "cuda" or fits else list(range(len(devices)))
