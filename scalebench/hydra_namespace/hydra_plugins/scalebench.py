"""What Hydra must find under the name `hydra_plugins` before it accepts it; the code is in scalebench itself.

This folder goes on sys.path when scalebench starts, and only then: a plugin installed for all would be
imported by every other Hydra program on the machine.
"""

from scalebench import hydra_launcher, search_path


class ScalebenchLauncher(hydra_launcher.SweepLauncher):
    pass


class ScalebenchSearchPath(search_path.PluginFolders):
    pass
