"""What Hydra must find under the name `hydra_plugins` before it accepts it; the code is in scalebench itself.

This folder goes on sys.path when scalebench starts, and only then: a plugin installed for all would be
imported by every other Hydra program on the machine.
"""

from hydra.core.config_store import ConfigStore

from scalebench.config import compose
from scalebench.sweeps import hydra_launcher


class ScalebenchLauncher(hydra_launcher.SweepLauncher):
    pass


class ScalebenchSearchPath(compose.PluginFolders):
    pass


_LAUNCHER = {"_target_": f"{__name__}.{ScalebenchLauncher.__name__}"}
ConfigStore.instance().store(group="hydra/launcher", name="scalebench", node=_LAUNCHER, provider="scalebench")
