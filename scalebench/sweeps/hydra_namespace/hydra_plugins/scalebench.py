"""The launcher and the search path under the name `hydra_plugins`, which Hydra requires.

This folder is on sys.path only in scalebench itself: an installed plugin would be imported by every other Hydra program
of the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf

from scalebench.config import compose


class ScalebenchLauncher(Launcher):
    """Has the session of a call do the runs that a sweeper proposes. The session is the sweeper's task function, since
    sweepers pass on nothing else of ours."""

    def setup(self, *, task_function: Any, **context: Any) -> None:
        self.session = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Return the number and the folder of each run; one that was left out has no result there."""
        jobs = []
        for run in self.session.run_batch(job_overrides, initial_job_idx, is_whole=False):
            about = {"job": {"num": run.number, "id": str(run.number)}, "runtime": {"output_dir": str(run.folder)}}
            hydra = OmegaConf.create({"hydra": about})
            jobs.append(JobReturn(run.overrides, hydra_cfg=hydra, status=JobStatus.COMPLETED))
        return jobs


class ScalebenchSearchPath(compose.PluginSearchPath):
    pass


_LAUNCHER = {"_target_": f"{__name__}.{ScalebenchLauncher.__name__}"}
ConfigStore.instance().store(group="hydra/launcher", name="scalebench", node=_LAUNCHER, provider="scalebench")
