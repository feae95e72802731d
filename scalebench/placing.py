"""Which process stands on which node, drives which devices and is pinned to which cores. Layer 2."""

from __future__ import annotations

from scalebench import hosts, machine
from scalebench.spec import CHIEF, Config, HardwareSpec, InputError, Place

MOST_SERVERS = 65_536


def place(config: Config, gpus: int) -> list[Place]:
    """Processes in sequence over the nodes: a second node only when the first is full."""
    hardware = config.hardware
    threads = hardware.cpus_per_device or 1
    per_node = hardware.gpus_per_node or gpus
    if hardware.devices == "cpu" and hardware.max_nodes == 1:
        per_node = max(per_node, gpus)  # more CPU workers than cores are allowed, on one node
    cores = machine.usable_cpus() if hardware.here else []
    if config.strategy.processes == "one_for_all":
        return [Place(0, 0, 0, list(range(gpus)), cores[: threads * gpus], threads)]
    # What drives no device comes first, and takes the cores that the others leave.
    places = [Place(rank, rank, 0, [], [], threads, role) for rank, role in enumerate(_without_device(config))]
    others = len(places)
    role = "worker" if others else ""
    # Hosts with too few slots are an obstacle, which is told elsewhere.
    named = bool(hardware.hosts) and hosts.shortage(hardware.hosts, gpus) is None
    nodes = hosts.nodes(hardware.hosts, gpus) if named else [number // per_node for number in range(gpus)]
    for number, node in enumerate(nodes):
        device = nodes[:number].count(node)
        mine = [cores[(device * threads + i) % len(cores)] for i in range(threads)] if cores else []
        local_rank = device + (others if node == 0 else 0)
        places.append(Place(others + number, local_rank, node, [device], sorted(set(mine)), threads, role))
    return places


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
    on_node = gpus if hardware.devices == "cpu" else min(gpus, hardware.gpus_per_node or gpus)
    return on_node * (hardware.cpus_per_device or 1) > (hardware.cpus_per_node or on_node)


def crowded(hardware: HardwareSpec, places: list[Place]) -> bool:
    """Whether a node has more processes than cores."""
    fullest = max(sum(p.node == node for p in places) for node in {p.node for p in places})
    return fullest > (hardware.cpus_per_node or fullest)
