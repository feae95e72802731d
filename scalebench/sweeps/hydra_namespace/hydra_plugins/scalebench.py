"""The launcher and the search path under the name `hydra_plugins`, which Hydra requires; the code is in scalebench.

This folder is on sys.path only in scalebench itself: an installed plugin would be imported by every other Hydra program
of the environment.
"""

from hydra.core.config_store import ConfigStore

from scalebench.config import compose
from scalebench.sweeps import hydra_launcher


class ScalebenchLauncher(hydra_launcher.SweepLauncher):
    pass


class ScalebenchSearchPath(compose.PluginSearchPath):
    pass


_LAUNCHER = {"_target_": f"{__name__}.{ScalebenchLauncher.__name__}"}
ConfigStore.instance().store(group="hydra/launcher", name="scalebench", node=_LAUNCHER, provider="scalebench")
