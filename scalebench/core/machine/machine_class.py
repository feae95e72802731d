"""What type of machine one is: what its speed depends on, and nothing that changes where speed should not. Layer 0."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass

from scalebench.core.machine.machine import Machine

GIB = 2**30


@dataclass(frozen=True)
class Kind:
    """A type of machine: neither its host name nor its software, which change where speed should not."""

    cpu_model: str | None
    cores: float | None  # usable ones, or the quota of the container where that is less
    memory_gib: float | None
    gpus: dict[str, int]  # number by name

    @property
    def fingerprint(self) -> str:
        """12 hex digits."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        gpus = ", ".join(f"{count} x {name}" for name, count in self.gpus.items()) or "no GPU"
        cores = "unknown cores" if self.cores is None else f"{self.cores:g} cores"
        memory = "unknown memory" if self.memory_gib is None else f"about {self.memory_gib:g} GiB"
        return f"cpu {self.cpu_model or 'unknown'}, {cores}, {memory}, {gpus}"


def kind_of(machine: Machine) -> Kind:
    cores = float(machine.cpus if machine.cpu_quota is None else min(machine.cpus, machine.cpu_quota))
    names = Counter(gpu.name or "unknown GPU" for gpu in machine.gpus)
    return Kind(machine.cpu_model, cores, _rounded_gib(machine.memory_bytes), dict(sorted(names.items())))


def _rounded_gib(size: int | None) -> float | None:
    """The nearest of 2^k and 1.5 x 2^k: what kernel and firmware keep for themselves is no other machine."""
    if not size or size < 0:
        return None
    exponent = math.floor(math.log2(size / GIB))
    steps = [2.0**exponent, 1.5 * 2.0**exponent, 2.0 ** (exponent + 1)]
    return min(steps, key=lambda step: abs(math.log(size / GIB / step)))
