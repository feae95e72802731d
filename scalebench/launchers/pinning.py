"""CPU binding for remote nodes, computed on the node itself. Layer 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scalebench import binding, machine
from scalebench.spec import RunSpec

CPUS = "SCALEBENCH_CPUS"  # for the worker, where its place has none: 0,1,2


def variable(spec: RunSpec, rank: int) -> dict[str, str]:
    """Return the variable with the cores of a rank on this host; none where its place has them, or it is not pinned."""
    cores = [] if spec.places[rank].cpus else shares(spec)[rank]
    return {CPUS: ",".join(map(str, cores))} if cores else {}


def cpus_from(variables: Mapping[str, str]) -> list[int]:
    """Return the cores that `variable` set."""
    return [int(word) for word in variables.get(CPUS, "").split(",") if word]


def shares(spec: RunSpec) -> list[list[int]]:
    """Return the cores of each rank as if this were its node; none for one that drives no device, or is not pinned.

    They are among those that this process may use: SLURM gives a job no more of a node than it asked for.
    """
    hardware = spec.config.hardware
    if hardware.here:
        return [[] for _ in spec.places]
    hardware = dataclasses.replace(hardware, here=True)
    cores_of: list[list[int]] = [[] for _ in spec.places]
    for node in {place.node for place in spec.places}:
        owners = [(place.rank, device) for place in spec.places if place.node == node for device in place.devices]
        parts = binding.shares(
            hardware, _numbers(hardware.devices, hardware.cpus_per_device or 1, [d for _, d in owners])
        )
        for (rank, _), cores in zip(owners, parts, strict=True):
            cores_of[rank] = sorted({*cores_of[rank], *cores})
    return cores_of


def _numbers(kind: str, threads: int, devices: list[int]) -> list[int]:
    """Return the devices as binding counts them. CPU workers are interchangeable, and the n-th takes the n-th part:
    numbers with gaps would put two on the same cores where there are fewer cores than the node has."""
    fits = (max(devices, default=0) + 1) * threads <= len(machine.usable_cpus())
    return devices if kind == "cuda" or fits else list(range(len(devices)))
