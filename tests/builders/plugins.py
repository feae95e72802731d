"""Made-up installed distributions in tmp_path, as pip would install plugins, for this process and its children.

A test file has the fixture by `from tests.builders.plugins import dists as dists`.
"""

import json
import os
import sys

import pytest

from scalebench.config import compose
from scalebench.core import config_files, plugins
from scalebench.strategies import registry

# A strategy of a plugin that only sleeps.
CODE = """\
from scalebench.strategies.simulated import Simulated


class Mine(Simulated):
    pass
"""
OPTIONS = config_files.strategy_option_defaults("simulated")


def strategy_yaml(name, **keys):
    """Return strategy/<name>.yaml for a class like that of CODE, with further keys of StrategySpec. (JSON is YAML.)"""
    defaults = {"name": name, "description": "a plugin's own", "framework": "none", "baseline": name}
    defaults |= {"adapter": "my_plugin.code:Mine", "options": OPTIONS}
    return json.dumps({**defaults, **keys}, indent=1)


def clear_plugin_caches():
    """Forget which plugins are installed."""
    plugins._all_entries.cache_clear()
    registry.strategy_entries.cache_clear()
    config_files.find_config_files.cache_clear()
    config_files.read_strategy_config.cache_clear()
    compose._keep_loader.cache_clear()


class Distributions:
    """Installs distributions below `site`; SCALEBENCH_PLUGINS enables only these."""

    def __init__(self, site, monkeypatch):
        self.site, self.names, self._monkeypatch = site, list[str](), monkeypatch
        monkeypatch.setenv("SCALEBENCH_PLUGINS", "")
        clear_plugin_caches()

    def add(self, dist="my-plugin", files=None, points=None, version="1.0"):
        """The folder on sys.path and PYTHONPATH that holds one more distribution.

        `files`: path below that folder -> its text. `points`: kind (models, datasets, configs) -> name -> target.
        """
        root = self.site / dist
        info = root / f"{dist.replace('-', '_')}-{version}.dist-info"
        groups = {f"scalebench.{kind}": named for kind, named in (points or {}).items()}
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in groups.items()]
        metadata = f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
        told = {info / "METADATA": metadata, info / "entry_points.txt": "\n".join(lines)}
        for path, text in {**told, **{root / name: text for name, text in (files or {}).items()}}.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._monkeypatch.syspath_prepend(str(root))
        below = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._monkeypatch.setenv("PYTHONPATH", os.pathsep.join(below))
        self.names.append(dist)
        self._monkeypatch.setenv("SCALEBENCH_PLUGINS", ",".join(self.names))
        clear_plugin_caches()
        return root

    def strategy(self, name="mine", dist="my-plugin", code=CODE, yaml="", target="{package}.code:Mine", **keys):
        """A distribution whose package (my_plugin) has code.py and conf/strategy/<name>.yaml.

        `yaml`: its text; empty: that of CODE's class, with `keys` of a StrategySpec. `target` is its adapter, and may
        name {package}; None: it has none.
        """
        package = dist.replace("-", "_")
        text = yaml or strategy_yaml(name, adapter=target and target.format(package=package), **keys)
        files = {f"{package}/__init__.py": "", f"{package}/code.py": code}
        files[f"{package}/conf/strategy/{name}.yaml"] = text
        return self.add(dist, files, {"configs": {package: f"{package}.conf"}})

    def forget_modules(self):
        """Out of sys.modules with what was imported from them: the next test has others of the same names."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
            if str(file).startswith(f"{self.site}{os.sep}"):
                del sys.modules[name]


@pytest.fixture
def dists(tmp_path, monkeypatch):
    """No plugin is installed but those that the test adds."""
    made = Distributions(tmp_path / "site", monkeypatch)
    yield made
    made.forget_modules()
    clear_plugin_caches()
