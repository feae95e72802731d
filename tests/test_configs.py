"""Where YAML files come from: ours, and those of plugins, which Hydra then composes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalebench import configs, registry
from scalebench.spec import InputError

YAML = """\
name: my_strategy
description: a plugin's own
options:
  step_s: 0.25
  mode: fast
"""
Plugin = Callable[..., Path]


def forget() -> None:
    registry.table.cache_clear()
    configs.option_defaults.cache_clear()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Installs a made-up distribution with a strategy and its YAML; gives its folder."""
    installed: list[str] = []

    def install(
        yaml: str = "strategy/my_strategy.yaml", dist: str = "my-plugin", package: str = "{module}.conf"
    ) -> Path:
        root, module = tmp_path / "site" / dist, dist.replace("-", "_")
        info, file = root / f"{module}-1.0.dist-info", root / module / "conf" / yaml
        for folder in (info, file.parent):
            folder.mkdir(parents=True)
        for name in ("__init__.py", "conf/__init__.py"):
            (root / module / name).touch()
        file.write_text(YAML)
        (root / module / "code.py").write_text("from scalebench.adapters.null import Null as Mine\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[{registry.GROUP}]\n{file.stem} = {module}.code:Mine\n"
            f"[{configs.GROUP}]\n{module} = {package.format(module=module)}\n"
        )
        monkeypatch.syspath_prepend(str(root))
        installed.append(dist)
        monkeypatch.setenv("SCALEBENCH_PLUGINS", ",".join(installed))
        forget()
        return root

    forget()
    yield install
    forget()
    for dist in installed:
        for name in [name for name in sys.modules if name.partition(".")[0] == dist.replace("-", "_")]:
            del sys.modules[name]


def test_our_folder_holds_the_groups() -> None:
    assert configs.groups() == ["dataset", "hardware", "measure", "model", "strategy", "sweep", "train"]
    assert (configs.conf_dir() / "config.yaml").is_file()
    assert sorted(configs.options("measure")) == ["default", "max_batch", "quick", "thorough"]


def test_without_plugins_there_is_no_other_folder() -> None:
    assert configs.plugin_folders() == []


def test_option_defaults_are_those_of_the_yaml() -> None:
    assert configs.option_defaults("null")["step_s"] == 0.001
    assert configs.option_defaults("bare_torch") == {}
    assert configs.option_defaults("zero1") == {}  # announced, without a YAML


def test_a_plugins_yaml_is_found(plugin: Plugin) -> None:
    root = plugin()
    assert configs.plugin_folders() == [("my-plugin", root / "my_plugin" / "conf")]
    assert configs.options("strategy")["my_strategy"] == root / "my_plugin/conf/strategy/my_strategy.yaml"
    assert configs.option_defaults("my_strategy") == {"step_s": 0.25, "mode": "fast"}


def test_a_plugin_that_is_not_chosen_brings_no_yaml(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin()
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "")
    assert configs.plugin_folders() == []


@pytest.mark.parametrize("yaml", ["strategy/ddp.yaml", "config.yaml", "hardware/local.yaml"])
def test_a_yaml_of_ours_cannot_be_shadowed(plugin: Plugin, yaml: str) -> None:
    plugin(yaml)
    with pytest.raises(InputError) as caught:
        configs.plugin_folders()
    assert str(caught.value) == f"{yaml} comes from both scalebench and my-plugin; uninstall one of them"


def test_two_plugins_with_one_yaml_are_both_named(plugin: Plugin) -> None:
    plugin(dist="first-plugin")
    plugin(dist="second-plugin")
    with pytest.raises(InputError, match=r"^strategy/my_strategy\.yaml comes from both \S+-plugin and \S+-plugin;"):
        configs.plugin_folders()


@pytest.mark.parametrize("package", ["not_there", "{module}.not_there", "not_there.conf", "{module}.code"])
def test_a_plugin_without_its_folder(plugin: Plugin, package: str) -> None:
    plugin(package=package)
    with pytest.raises(InputError) as caught:
        configs.plugin_folders()
    registered = package.format(module="my_plugin")
    assert str(caught.value) == (f"plugin my-plugin registers the config package '{registered}', which is not there")


def python(code: str, root: Path) -> subprocess.CompletedProcess[str]:
    """An interpreter of its own, in which the plugin is installed."""
    begin = f"import sys\nsys.path.insert(0, {str(root)!r})\n"
    return subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=60)


def test_a_plugins_strategy_composes_and_resolves(plugin: Plugin) -> None:
    code = """
from scalebench import cli, jobs, resolve
words = ["strategy=my_strategy", "strategy.options.step_s=1", "gpus=2"]
spec = resolve.resolve(jobs.to_config(cli.compose(words)))
print(spec.label, spec.unsupported, spec.config.strategy.options)
"""
    done = python(code, plugin())
    assert (done.stdout, done.stderr) == ("my_strategy gpus=2 None {'step_s': 1, 'mode': 'fast'}\n", "")


def test_the_command_line_knows_a_plugins_strategy_and_its_options(plugin: Plugin) -> None:
    code = """
from scalebench.__main__ import main
print(main(["strategy=my_strategy", "gpus=1", "dry_run=true"]))
print(main(["strategy=my_strategi"]))
print(main(["strategy=my_strategy", "strategy.options.mod=x"]))
print(main(["strategy=my_strategy", "strategy.options.mode=1"]))
"""
    done = python(code, plugin())
    assert done.stderr.splitlines() == [
        "scalebench: no strategy 'my_strategi'; did you mean 'my_strategy'?",
        "scalebench: no option of strategy 'my_strategy' 'mod'; did you mean 'mode'?",
        "scalebench: strategy.options.mode=1 should be str, as its default 'fast'",
    ]
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["0", "2", "2", "2"]


def test_a_broken_plugin_is_one_line_and_status_2(plugin: Plugin) -> None:
    code = "from scalebench.__main__ import main\nprint(main(['gpus=1', 'dry_run=true']), main(['strategies']))"
    done = python(code, plugin("strategy/ddp.yaml"))
    assert done.stdout == "2 2\n"
    assert done.stderr.count("\n") == 2 and "Traceback" not in done.stderr
