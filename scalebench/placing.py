"""Which process stands on which node, drives which devices and is pinned to which cores. Layer 2."""

from __future__ import annotations

import dataclasses

from scalebench import binding, hosts, worker_environment
from scalebench.spec import CHIEF, Config, HardwareSpec, InputError, Place

MOST_SERVERS = 65_536


def place(config: Config, gpus: int) -> list[Place]:
    """Processes in sequence over the nodes: a second node only when the first is full.

    InputError where hardware.device_ids names too few devices, or what is no device.
    """
    hardware = config.hardware
    threads = hardware.cpus_per_device or 1
    if config.strategy.processes == "one_for_all":
        mine = device_ids(hardware, gpus, gpus)
        cores = sorted({core for share in binding.shares(hardware, mine) for core in share})
        return [Place(0, 0, 0, mine, cores, threads)]
    nodes = _nodes(hardware, gpus)
    ids = device_ids(hardware, gpus, max(map(nodes.count, nodes)))
    # What drives no device comes first, and takes the cores that the others leave.
    places = [Place(rank, rank, 0, [], [], threads, role) for rank, role in enumerate(_without_device(config))]
    others = len(places)
    role = "worker" if others else ""
    shares = {node: binding.shares(hardware, ids[: nodes.count(node)]) for node in dict.fromkeys(nodes)}
    for number, node in enumerate(nodes):
        position = nodes[:number].count(node)
        local_rank = position + (others if node == 0 else 0)
        mine = shares[node][position]
        places.append(Place(others + number, local_rank, node, [ids[position]], mine, threads, role))
    return places


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
    """The hardware with what this run uses of the devices and variables chosen, so that equal runs are one run."""
    most = max(sum(len(p.devices) for p in places if p.node == node) for node in {p.node for p in places})
    chosen = hardware.device_ids[:most]
    return dataclasses.replace(hardware, device_ids=chosen, environment=worker_environment.of_run(hardware, gpus))


def _told(ids: list[int]) -> str:
    return f"[{','.join(map(str, ids))}]"


def _nodes(hardware: HardwareSpec, gpus: int) -> list[int]:
    """The node of each device of the run."""
    # Hosts with too few slots are an obstacle, which is told elsewhere.
    if hardware.hosts and hosts.shortage(hardware.hosts, gpus) is None:
        return hosts.nodes(hardware.hosts, gpus)
    per_node = hardware.gpus_per_node or gpus
    if hardware.devices == "cpu" and hardware.max_nodes == 1:
        per_node = max(per_node, gpus)  # more CPU workers than cores are allowed, on one node
    return [number // per_node for number in range(gpus)]


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
    """Whether a node has more processes than cores, or two processes have a core in common."""
    fullest = max(sum(p.node == node for p in places) for node in {p.node for p in places})
    cores = [(p.node, core) for p in places for core in p.cpus]
    return fullest > (hardware.cpus_per_node or fullest) or len(set(cores)) < len(cores)
