"""The cores of a rank on a node that nobody could look at before the run was there. Layer 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scalebench import binding, machine
from scalebench.spec import RunSpec

CPUS = "SCALEBENCH_CPUS"  # for the worker, where its place has none: 0,1,2


def variable(spec: RunSpec, rank: int) -> dict[str, str]:
    """What tells a rank on this host its cores; nothing where its place does, or it is not to be pinned."""
    cores = [] if spec.places[rank].cpus else shares(spec)[rank]
    return {CPUS: ",".join(map(str, cores))} if cores else {}


def given(variables: Mapping[str, str]) -> list[int]:
    """The cores that `variable` told."""
    return [int(word) for word in variables.get(CPUS, "").split(",") if word]


def shares(spec: RunSpec) -> list[list[int]]:
    """The cores of each rank, were this its node; none for one that drives no device, or is not to be pinned.

    They are among those that this process may use: SLURM gives a job no more of a node than it asked for.
    """
    hardware = spec.config.hardware
    if hardware.here:
        return [[] for _ in spec.places]
    hardware = dataclasses.replace(hardware, here=True)
    found: list[list[int]] = [[] for _ in spec.places]
    for node in {place.node for place in spec.places}:
        owners = [(place.rank, device) for place in spec.places if place.node == node for device in place.devices]
        parts = binding.shares(
            hardware, _numbers(hardware.devices, hardware.cpus_per_device or 1, [d for _, d in owners])
        )
        for (rank, _), cores in zip(owners, parts, strict=True):
            found[rank] = sorted({*found[rank], *cores})
    return found


def _numbers(kind: str, threads: int, devices: list[int]) -> list[int]:
    """The devices as binding counts them. CPU workers are alike, and the n-th of them takes the n-th part: numbers with
    gaps would put two on the same cores where there are fewer cores than the whole node has."""
    fits = (max(devices, default=0) + 1) * threads <= len(machine.usable_cpus())
    return devices if kind == "cuda" or fits else list(range(len(devices)))
