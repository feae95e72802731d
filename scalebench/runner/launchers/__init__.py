"""Starts the processes of a run, and ends them: strategy.launcher names one of these modules. Layer 2."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from scalebench.core.spec import RunSpec
    from scalebench.runner.launchers.supervise import GroupExit, Launcher

LAUNCHERS = {
    "local": "scalebench.runner.launchers.local",
    "mpi": "scalebench.runner.launchers.mpi",
    "by_hand": "scalebench.runner.launchers.torchrun",
    "slurm": "scalebench.runner.launchers.srun",  # of strategies with either of the first two, on the nodes of a job
}


def launch(spec: RunSpec, folder: Path, run_id: str, *options: Any, **more: Any) -> GroupExit:
    """Run all ranks of `spec` in `folder` to their end, by the launcher of its strategy, or as a step of this job.

    The arguments are those of watch.LaunchRequest; watch.Launcher describes how this ends.
    """
    from scalebench.runner.launchers.supervise import LaunchRequest

    launcher = cast("Launcher", importlib.import_module(LAUNCHERS[launcher_of(spec)]))
    return launcher.launch(LaunchRequest(spec, folder, run_id, *options, **more))


def launcher_of(spec: RunSpec) -> str:
    """Name the launcher of a run: on the nodes of a job SLURM starts the ranks, unless mpirun must."""
    from scalebench.runner.launchers.srun import uses_allocation

    name, slurm = spec.config.strategy.launcher, spec.config.hardware.slurm
    by_step = name == "local" or (name == "mpi" and slurm.mpi != "mpirun")
    return "slurm" if by_step and uses_allocation(spec) else name
