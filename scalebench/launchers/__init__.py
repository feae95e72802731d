"""Who starts the processes of a run, and ends them: strategy.launcher names one of these modules. Layer 2."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebench.launchers.watch import Ended
    from scalebench.measure.progress import Progress
    from scalebench.spec import RunSpec

LAUNCHERS = {
    "local": "scalebench.launchers.local",
    "mpi": "scalebench.launchers.mpi",
    "by_hand": "scalebench.launchers.by_hand",
    "slurm": "scalebench.launchers.slurm",  # of strategies with either of the first two, on the nodes of a job
}


def launch(
    spec: RunSpec,
    folder: Path,
    run_id: str,
    on_look: Callable[[list[Progress]], None] = lambda progress: None,
    module: str = "scalebench.worker",
) -> Ended:
    """Run all ranks of `spec` in `folder` to their end, by the launcher of its strategy, or as a step of this job.

    `module` is what each rank runs, with the folder as its argument. Whatever happens, also an exception or Ctrl-C
    here, no process is left. StartError (of launchers.watch) when processes cannot be started.
    """
    launcher = importlib.import_module(LAUNCHERS[of(spec)])
    ended: Ended = launcher.launch(spec, folder, run_id, on_look, module)
    return ended


def of(spec: RunSpec) -> str:
    """The launcher of a run: on the nodes of a job SLURM starts the ranks, but for those that mpirun is to start."""
    from scalebench.launchers.allocation import gives_nodes

    name, slurm = spec.config.strategy.launcher, spec.config.hardware.slurm
    by_step = name == "local" or (name == "mpi" and slurm.mpi != "mpirun")
    return "slurm" if by_step and gives_nodes(spec) else name
