"""What a user may ask of SLURM: `hardware.slurm`, checked before anything is submitted. Layer 2."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalebench.spec import HardwareSpec, InputError, SlurmSpec
from scalebench.suggest import no_such

RUNTIMES = ("apptainer", "pyxis")
MPI = ("mpirun", "pmix", "pmix_v2", "pmix_v3", "pmix_v4", "pmix_v5", "pmi2", "openmpi", "cray_shasta")
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?")
NAMES = "partition account qos reservation constraint".split()
GEOMETRY = "gpus and the keys of hardware"
# Options that scalebench writes itself, and the keys that they come from.
OURS = {name: f"hardware.slurm.{name}" for name in (*NAMES, "exclusive", "gres")} | {
    "mem": "hardware.slurm.memory", "time": "hardware.slurm.time_minutes", "nodes": GEOMETRY, "ntasks": GEOMETRY,
    "ntasks-per-node": GEOMETRY, "cpus-per-task": "hardware.cpus_per_device", "output": "the folder of the run",
    "error": "the folder of the run", "job-name": "the run", "no-requeue": "scalebench", "requeue": "scalebench",
    "array": "scalebench", "wrap": "scalebench", "wait": "scalebench", "parsable": "scalebench",
    "overcommit": GEOMETRY,
}  # fmt: skip
# Of the step that starts the ranks. Where the job and the step have the same one, the step takes over the job's.
STEP_OURS = dict.fromkeys("nodes ntasks ntasks-per-node distribution overcommit nodelist".split(), GEOMETRY) | {
    "cpus-per-task": "hardware.cpus_per_device", "cpu-bind": "hardware.bind", "mpi": "hardware.slurm.mpi",
    "kill-on-bad-exit": "scalebench", "output": "the folder of the run", "error": "the folder of the run",
    "container-image": "hardware.slurm.container", "container-mounts": "hardware.slurm.container_mounts",
}  # fmt: skip


def check(hardware: HardwareSpec) -> None:
    """InputError for what no cluster would understand; what this one does not have is its own to say."""
    slurm = hardware.slurm
    for key, value, known in (
        ("hardware.scheduler", hardware.scheduler, ("none", "slurm")),
        ("hardware.slurm.container_runtime", slurm.container_runtime, RUNTIMES),
        ("hardware.slurm.mpi", slurm.mpi, MPI),
    ):
        if value not in known:
            raise InputError(f"{key}={value}: {no_such('such value', value, known)}")
    if slurm.time_minutes is not None and slurm.time_minutes < 1:
        raise InputError(f"hardware.slurm.time_minutes={slurm.time_minutes} should be at least 1")
    parse(slurm.lines)
    parse(slurm.srun, "hardware.slurm.srun", STEP_OURS)
    _check_words(slurm)
    mounts(slurm.container_mounts)


def parse(
    lines: Sequence[str], key: str = "hardware.slurm.lines", ours: dict[str, str] = OURS
) -> dict[str, str | bool]:
    """Options by name, True for those without a value. InputError for what is none, or is not the user's to set."""
    found: dict[str, str | bool] = {}
    for line in lines:
        match = OPTION.fullmatch(line)
        if match is None:
            raise InputError(f"{key}: '{line}' should be --name=value or --name, in one line")
        name, value = match.groups()
        if name in ours:
            raise InputError(f"{key}: --{name} comes from {ours[name]}; leave it out here")
        found[name] = True if value is None else value
    return found


def mounts(told: Sequence[str]) -> list[tuple[str, str]]:
    """(FROM, TO) of each mount, with what stands behind TO, such as :ro. InputError for what is none."""
    found = []
    for mount in told:
        match = re.fullmatch(r"(/[^:,\n]*):(/[^:,\n]*(?::[a-z,]+)?)", mount)
        if match is None:
            raise InputError(
                f"hardware.slurm.container_mounts: '{mount}' should be FROM:TO, both from the root, such as /data:/data"
            )
        found.append((match[1], match[2]))
    return found


def _check_words(slurm: SlurmSpec) -> None:
    for key in NAMES:
        value = getattr(slurm, key)
        if value is not None and (not value or re.search(r"\s", value) or value.startswith("-")):
            raise InputError(f"hardware.slurm.{key}='{value}' should be one word")
    if slurm.memory is not None and not re.fullmatch(r"\d+([KMGT]B?)?", slurm.memory, re.IGNORECASE):
        raise InputError(f"hardware.slurm.memory={slurm.memory} should be a number and K, M, G or T, such as 64G")
    if not re.fullmatch(r"(?:[^\s{}]|\{gpus\})*", slurm.gres):
        raise InputError(f"hardware.slurm.gres={slurm.gres} should be one word such as gpu:{{gpus}}")
    for key in ("container", "container_python", "bin"):
        if (value := getattr(slurm, key)) is not None and (not value or "\n" in value):
            raise InputError(f"hardware.slurm.{key}='{value}' should be a path in one line")
    if slurm.container is not None and slurm.container_runtime == "apptainer" and slurm.container.startswith("-"):
        raise InputError(f"hardware.slurm.container={slurm.container} should be an image")
