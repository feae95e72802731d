"""`hardware.environment`: variables that a run sets for its processes, beside those of the shell. Layer 2."""

from __future__ import annotations

import re

from scalebench.machine import PRIVATE
from scalebench.spec import HardwareSpec, InputError

OURS = re.compile(r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|PYTHONUNBUFFERED|CUDA_DEVICE_ORDER)$")
OUR_PREFIXES = ("MASTER_", "SCALEBENCH_", "HYDRA_")
INSTEAD = {
    "CUDA_VISIBLE_DEVICES": "hardware.device_ids",
    "OMP_NUM_THREADS": "hardware.cpus_per_device",
    "MKL_NUM_THREADS": "hardware.cpus_per_device",
    "OPENBLAS_NUM_THREADS": "hardware.cpus_per_device",
}


def check(hardware: HardwareSpec) -> None:
    """InputError for a name that is none, is set by scalebench itself, or whose value nobody should read."""
    for name, value in hardware.environment.items():
        where = f"hardware.environment: {name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(f"hardware.environment: '{name}' is no name of a variable")
        if name in INSTEAD:
            raise InputError(f"{where} is set by scalebench; use {INSTEAD[name]}")
        if OURS.match(name) or name.startswith(OUR_PREFIXES):
            raise InputError(f"{where} is set by scalebench for each process; leave it out")
        if PRIVATE.search(name):
            raise InputError(f"{where} looks like a secret and would stand in the record; set it in the shell")
        if "\0" in value:
            raise InputError(f"{where} has a zero byte in its value, which no variable can hold")


def of_run(hardware: HardwareSpec, gpus: int) -> dict[str, str]:
    """Its variables, in the order of their names. A single device has nobody to talk to: NCCL's are left out, so that
    such runs of a sweep over them are one run."""
    kept = {name for name in hardware.environment if gpus > 1 or not name.startswith("NCCL_")}
    return {name: hardware.environment[name] for name in sorted(kept)}
