"""The image that ranks run in, as Apptainer and pyxis take it. Layer 2."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scalebench import machine
from scalebench.slurm.options import mounts
from scalebench.spec import InputError, RunSpec


def srun_words(spec: RunSpec, folder: Path) -> list[str]:
    """Options of srun, where pyxis has given it some for containers."""
    slurm = spec.config.hardware.slurm
    if slurm.container is None or slurm.container_runtime != "pyxis":
        return []
    return [f"--container-image={slurm.container}", f"--container-mounts={','.join(_mounted(spec, folder))}"]


def python(spec: RunSpec, folder: Path) -> list[str]:
    """The command that is Python for a rank."""
    slurm = spec.config.hardware.slurm
    if slurm.container is None:
        return [sys.executable]
    if slurm.container_runtime == "pyxis":
        return [slurm.container_python]
    gpus = ["--nv"] if spec.device == "cuda" else []
    binds = ["--bind", ",".join(_mounted(spec, folder))]
    return ["apptainer", "exec", *gpus, *binds, slurm.container, slurm.container_python]


def folders(spec: RunSpec, folder: Path) -> list[Path]:
    """What a rank reads and writes: the run's folder, the data set's, and where a node keeps a copy of that."""
    dataset, stage = spec.config.dataset, spec.config.hardware.stage
    told = [folder, dataset.cache or machine.cache_folder(), dataset.path, stage]
    absolute = [Path(os.path.abspath(Path(path).expanduser())) for path in told if path is not None]
    return list(dict.fromkeys(absolute))


def _mounted(spec: RunSpec, folder: Path) -> list[str]:
    paths = folders(spec, folder)
    for path in paths:
        if set(",:") & set(str(path)):
            raise InputError(
                f"{path} cannot be mounted in a container: commas and colons part mounts; take another name"
            )
    told = [f"{source}:{target}" for source, target in mounts(spec.config.hardware.slurm.container_mounts)]
    return [f"{path}:{path}" for path in paths] + told
