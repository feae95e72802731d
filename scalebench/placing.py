"""Which process stands on which node, drives which devices and is pinned to which cores. Layer 2."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from scalebench import binding, hosts, worker_environment
from scalebench.spec import CHIEF, Config, HardwareSpec, InputError, Place

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
    cores = sorted({core for share in binding.shares(hardware, ids) for core in share})
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
        shares = binding.shares(hardware, ids[:count])
        for position in range(count):
            local_rank = position + (others if node == 0 else 0)
            devices = [ids[position]]
            places.append(Place(len(places), local_rank, node, devices, shares[position], threads, role))
    return places


def _shortage(config: Config, gpus: int, rooms: list[int], nodes: int) -> str | None:
    """Why the nodes do not hold so many devices; None where they do, or one process takes all of them."""
    hardware = config.hardware
    if hardware.hosts:
        return hosts.shortage(hardware.hosts, gpus)
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
        environment=worker_environment.of_run(hardware, gpus),
    )


def _as_list(ids: list[int]) -> str:
    return f"[{','.join(map(str, ids))}]"


def _rooms(hardware: HardwareSpec, gpus: int) -> list[int]:
    """How many devices each node holds, of those that the run may have."""
    # Where hosts have too few slots, that is why there is a shortage.
    if hardware.hosts and hosts.shortage(hardware.hosts, gpus) is None:
        return [slots for _, slots in hosts.parse(hardware.hosts)]
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
