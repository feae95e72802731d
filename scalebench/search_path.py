"""YAML folders of plugins (entry points `scalebench.configs`) on Hydra's search path. Layer 4."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from scalebench import configs


class PluginFolders(SearchPathPlugin):
    """Hydra asks this for more folders, after the program's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for origin, folder in configs.plugin_folders():
            search_path.append(provider=origin, path=f"file://{folder}")
        if configs.found().unusable:  # then what cli.register puts in their place comes first
            search_path.prepend(provider="schema", path="structured://")  # its name for its store
