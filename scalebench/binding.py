"""Which cores go to the process of which device: `hardware.bind`. Layer 2.

numa: cores of the NUMA node that the device hangs from. far: of the node farthest from it, to see what that costs.
none: no process is pinned. CPU workers, and GPUs of which nobody tells the node, get cores in the order of their
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalebench import machine
from scalebench.spec import HardwareSpec


def shares(hardware: HardwareSpec, devices: Sequence[int]) -> list[list[int]]:
    """The cores of each of these devices of one node, so many for each as it has threads; none means not pinned.

    No core is given twice while there are enough for all.
    """
    cores, threads = machine.usable_cpus() if hardware.here else [], hardware.cpus_per_device or 1
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
