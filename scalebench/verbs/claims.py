"""What a hardware YAML says of a node, beside what this host has: pure comparisons, for `scalebench doctor`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from scalebench.machine import Machine
from scalebench.spec import HardwareSpec

OK, DIFFERS, UNCHECKED = "ok", "differs", "not checked"
NEAR = 0.1  # of sizes: "64 GB" may be 64 * 10^9 or 64 * 2^30 bytes, less what the firmware keeps
BRANDS = {"nvidia", "geforce", "tesla"}  # which drivers sometimes leave out
ANOTHER_CARD = {"ti", "super"}  # a GTX 1070 Ti is no GTX 1070


@dataclass(frozen=True)
class Claim:
    """One line of the doctor's table. `said` is the YAML's word, `here` what was found."""

    key: str
    said: str
    here: str
    verdict: str


def claim(key: str, said: object, here: str | None, same: bool) -> Claim:
    """Not checked where nothing is said, or what is here cannot be told."""
    verdict = UNCHECKED if said is None or here is None else OK if same else DIFFERS
    return Claim(key, "null" if said is None else str(said), here or "cannot be told", verdict)


def unchecked(claims: list[Claim], because: str) -> list[Claim]:
    """The same lines for a host that is not the one they are of."""
    return [replace(line, here=f"{line.here} ({because})", verdict=UNCHECKED) for line in claims]


def of_node(hardware: HardwareSpec, here: Machine, in_job: bool = False) -> list[Claim]:
    """Devices, cores, memory and links. A job may have been given a part of a node's GPUs: fewer prove nothing then."""
    claims = _gpus(hardware, here, in_job) if hardware.devices != "cpu" else []
    cores = here.cpus_physical or here.cpus
    usable = f", {here.cpus} for this process" if here.cpus < cores else ""
    claims.append(
        claim("cpus_per_node", hardware.cpus_per_node, f"{cores} cores{usable}", hardware.cpus_per_node == cores)
    )
    memory = of_size("memory_bytes", hardware.memory_bytes, here.memory_bytes)
    return [*claims, memory, _within(hardware, here)]


def of_size(key: str, said: int | None, here: int | None) -> Claim:
    return claim(key, size(said), size(here), near(said, here))


def near(said: int | None, here: int | None) -> bool:
    return said is not None and here is not None and abs(said - here) <= NEAR * said


def size(found: int | None) -> str | None:
    return None if found is None else f"{found / 1e9:,.0f} GB" if found >= 1e10 else f"{found / 1e9:.1f} GB"


def same_model(said: str, here: str) -> bool:
    """Whether a name of gpu_specs.csv, such as 'A100 SXM4 40GB', is meant by NVML's 'NVIDIA A100-SXM4-40GB'."""
    wanted, found = (set(re.findall(r"[a-z0-9]+", name.lower())) - BRANDS for name in (said, here))
    return wanted <= found and not (found - wanted) & ANOTHER_CARD


def counted(words: list[str]) -> str:
    """['a', 'b', 'a'] -> '2 x a, b'."""
    return ", ".join(word if many == 1 else f"{many} x {word}" for word, many in Counter(words).items())


def _gpus(hardware: HardwareSpec, here: Machine, in_job: bool) -> list[Claim]:
    count, said = len(here.gpus), hardware.gpus_per_node
    number = claim("gpus_per_node", said, str(count), said == count)
    if in_job and said is not None and count < said:
        number = replace(number, here=f"{count}, as this job was given", verdict=UNCHECKED)
    names = [gpu.name or "unknown GPU" for gpu in here.gpus]
    model, memory = hardware.gpu_model, hardware.gpu_memory_bytes
    sizes = [size(gpu.memory_bytes) or "unknown" for gpu in here.gpus]
    return [
        number,
        claim("gpu_model", model, counted(names) or None, all(same_model(model or "", name) for name in names)),
        claim(
            "gpu_memory_bytes",
            size(memory),
            counted(sizes) or None,
            all(near(memory, gpu.memory_bytes) for gpu in here.gpus),
        ),
    ]


def _within(hardware: HardwareSpec, here: Machine) -> Claim:
    """NVLink or none is what can be told apart by a YAML's words; other words stand beside what is here."""
    said = hardware.links.get("intra_node")
    words = [word for row, line in enumerate(here.topology or []) for word in line[row + 1 :]]
    found = counted(sorted(words)) + " in nvidia-smi topo" if words else None
    line = claim("links.intra_node", said, found, True)
    if said is None or "nvlink" not in said.lower() or not words:
        return replace(line, verdict=UNCHECKED)
    linked = any(word.startswith("NV") for word in words)
    return replace(line, verdict=OK if linked != ("no nvlink" in said.lower()) else DIFFERS)
