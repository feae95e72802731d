"""The hosts of a run, as mpirun takes them: `hardware.hosts=[a:8,b:8]`, in order, each with its slots. Layer 0."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalebench.spec import InputError, Place

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
