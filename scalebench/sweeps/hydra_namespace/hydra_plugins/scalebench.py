"""The launcher and the search path under the name `hydra_plugins`, which Hydra requires; the code is in scalebench.

This folder is on sys.path only in scalebench itself: an installed plugin would be imported by every other Hydra program
of the environment. Hydra imports it to compose a config, and the launcher's own import takes longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from scalebench.config import compose


class ScalebenchLauncher(Launcher):
    """Stands for a `SweepLauncher`, which is imported when a sweeper needs it."""

    def setup(self, **context: Any) -> None:
        from scalebench.sweeps.hydra_launcher import SweepLauncher

        self._launcher = SweepLauncher()
        self._launcher.setup(**context)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self._launcher.launch(job_overrides, initial_job_idx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)


class ScalebenchSearchPath(compose.PluginSearchPath):
    pass


_LAUNCHER = {"_target_": f"{__name__}.{ScalebenchLauncher.__name__}"}
ConfigStore.instance().store(group="hydra/launcher", name="scalebench", node=_LAUNCHER, provider="scalebench")
