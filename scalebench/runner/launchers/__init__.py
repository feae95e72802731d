"""Starts the processes of a run and ends them: strategy.launcher names one of these modules."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from scalebench.core.spec import RunSpec
    from scalebench.runner.launchers.supervise import GroupExit

LAUNCHER_MODULES = {
    "local": "local",
    "mpi": "mpi",
    "by_hand": "waiting",
    "pods": "waiting",  # of a JobSet
    "command": "command",  # of the user's, as script.command
    "slurm": "srun",  # for strategies with either of the first two, on the nodes of a job
}


def launch(spec: RunSpec, folder: Path, run_id: str, *options: Any, **more: Any) -> GroupExit:
    """Run all ranks of `spec` in `folder` to their end, by the launcher of its strategy, or as a step of this job.

    The arguments are those of supervise.LaunchRequest. The group is ended when a rank fails, after `hang_s` without
    progress, and after `timeout_s` in all; service ranks are also ended when all ranks that measure have ended well.
    Whatever happens, also an exception or Ctrl-C here, no process is left. StartError when processes cannot be started.
    """
    from scalebench.runner.launchers.supervise import LaunchRequest

    launcher = importlib.import_module(f"{__name__}.{LAUNCHER_MODULES[choose_launcher(spec)]}")
    return cast("GroupExit", launcher.launch(LaunchRequest(spec, folder, run_id, *options, **more)))


def choose_launcher(spec: RunSpec, site: str | None = None) -> str:
    """Return the name of a run's launcher at this site, or here: on the nodes of a job SLURM starts the ranks, unless
    mpirun must."""
    from scalebench.cluster.commands import find_site

    if spec.config.script.command is not None:
        return "command"
    name, slurm = spec.config.strategy.launcher, spec.config.hardware.slurm
    site = site or find_site(spec.config.hardware)
    by_step = site == "allocation" and (name == "local" or (name == "mpi" and slurm.mpi != "mpirun"))
    return "pods" if site == "pods" else "slurm" if by_step else name
