"""Which process stands on which node, drives which devices and is pinned to which cores. Layer 2."""

from __future__ import annotations

import dataclasses
from collections import Counter

from scalebench import binding, hosts, worker_environment
from scalebench.spec import CHIEF, Config, HardwareSpec, InputError, Place

MOST_SERVERS = 65_536


def place(config: Config, gpus: int) -> list[Place]:
    """Processes over the nodes as hardware.layout says, in contiguous blocks in the order of the nodes.

    InputError where hardware.device_ids names too few devices, or what is no device.
    """
    hardware = config.hardware
    threads = hardware.cpus_per_device or 1
    if config.strategy.processes == "one_for_all":
        mine = device_ids(hardware, gpus, gpus)
        cores = sorted({core for share in binding.shares(hardware, mine) for core in share})
        return [Place(0, 0, 0, mine, cores, threads)]
    counts = per_node(hardware, gpus)
    ids = device_ids(hardware, gpus, max(counts))
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


def per_node(hardware: HardwareSpec, gpus: int) -> list[int]:
    """How many devices the run drives on each node that it uses.

    In sequence a second node comes only when the first is full. Spread, they are dealt out over as many nodes as there
    may be, one more on some than on others, or fewer where a node holds no more. Where they are too many for all nodes
    there are more nodes than there may be, which `shortage` tells.
    """
    rooms = _rooms(hardware, gpus)
    return _dealt(rooms, gpus) if hardware.layout == "spread" and sum(rooms) >= gpus else _filled(rooms, gpus)


def shortage(config: Config, gpus: int) -> str | None:
    """Why the nodes do not hold so many devices, in a clause; None where they do, or there is one that takes all."""
    hardware = config.hardware
    if hardware.hosts:
        return hosts.shortage(hardware.hosts, gpus)
    if config.strategy.processes == "one_for_all" or gpus <= sum(_rooms(hardware, gpus)):
        return None
    nodes, each = len(per_node(hardware, gpus)), hardware.gpus_per_node
    has = f"{hardware.max_nodes} of {each} devices each" if each else f"{hardware.max_nodes}"
    return f"gpus={gpus} asks for {nodes} nodes, hardware={hardware.name} has {has}"


def device_ids(hardware: HardwareSpec, gpus: int, per_node: int) -> list[int]:
    """The devices of a node, in order: hardware.device_ids, or the first ones. InputError where they make no sense."""
    ids = hardware.device_ids
    wrong = [number for number in ids if number < 0]
    if wrong:
        raise InputError(f"hardware.device_ids={_told(ids)}: there is no device {wrong[0]}; the first one is 0")
    twice = [number for position, number in enumerate(ids) if number in ids[:position]]
    if twice:
        raise InputError(f"hardware.device_ids={_told(ids)} names device {twice[0]} twice; name each once")
    if ids and per_node > len(ids):
        wants = f"{per_node} device{'s' if per_node > 1 else ''} a node"
        raise InputError(
            f"gpus={gpus} wants {wants}, hardware.device_ids names {len(ids)}; name more of them or lower gpus"
        )
    return ids[:per_node] or list(range(per_node))


def placed(hardware: HardwareSpec, gpus: int, places: list[Place]) -> HardwareSpec:
    """The hardware with what this run uses of the layout, devices and variables, so that equal runs are one run."""
    on_nodes = Counter(p.node for p in places for _ in p.devices)
    in_sequence = dataclasses.replace(hardware, layout="sequence")
    same = len(places) == 1 or list(on_nodes.values()) == per_node(in_sequence, gpus)
    return dataclasses.replace(
        hardware,
        layout="sequence" if same else hardware.layout,
        device_ids=hardware.device_ids[: max(on_nodes.values())],
        environment=worker_environment.of_run(hardware, gpus),
    )


def _told(ids: list[int]) -> str:
    return f"[{','.join(map(str, ids))}]"


def _rooms(hardware: HardwareSpec, gpus: int) -> list[int]:
    """How many devices each node holds, of those that the run may have."""
    # Hosts with too few slots are an obstacle, which is told elsewhere.
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
    if not (isinstance(servers, int) and not isinstance(servers, bool) and 1 <= servers <= MOST_SERVERS):
        raise InputError(f"strategy.processes.roles.ps={servers} should be a count, at least 1")
    return [CHIEF, *["ps"] * servers]


def oversubscribed(hardware: HardwareSpec, gpus: int) -> bool:
    """Whether the processes of one node want more cores than it has."""
    on_node = max(per_node(hardware, gpus))
    return on_node * (hardware.cpus_per_device or 1) > (hardware.cpus_per_node or on_node)


def crowded(hardware: HardwareSpec, places: list[Place]) -> bool:
    """Whether a node has more processes than cores, or two processes have a core in common."""
    fullest = max(sum(p.node == node for p in places) for node in {p.node for p in places})
    cores = [(p.node, core) for p in places for core in p.cpus]
    return fullest > (hardware.cpus_per_node or fullest) or len(set(cores)) < len(cores)
