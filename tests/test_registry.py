"""Names -> classes: the built-ins, plugins of installed packages, and what goes wrong with either."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalebench import registry
from scalebench.spec import InputError
from scalebench.strategy import Strategy

BUILT_IN = (
    "null bare_torch ddp ddp_nccl ddp_gloo lightning_ddp lightning_ddp_nccl lightning_ddp_gloo independent_torch "
    "bare_tensorflow mirrored mirrored_nccl mirrored_hierarchical mirrored_reduce_cpu mirrored_reduce_device "
    "central_storage_cpu central_storage_device multiworker_ring multiworker_nccl parameter_server "
    "independent_tensorflow multi_gpu_model kuza55_ps_cpu kuza55_ps_gpu avolkov1_ps_cpu avolkov1_ps_gpu "
    "horovod_nccl horovod_mpi horovod_gloo horovod_tensorflow_nccl horovod_tensorflow_mpi horovod_tensorflow_gloo "
    "lightning_horovod"
).split()
NOT_YET = "fsdp_nccl fsdp_gloo zero1 data_parallel tensor_parallel model_parallel pipeline_gpipe hybrid".split()
CODE = """
from scalebench.adapters.null import Null
class Mine(Null):
    pass
class Stranger:
    pass
"""
Plugin = Callable[..., None]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Installs a made-up distribution with one strategy; SCALEBENCH_PLUGINS lets it in."""
    installed: list[str] = []

    def install(target: str = "{module}:Mine", name: str = "my_strategy", dist: str = "my-plugin") -> None:
        root, module = tmp_path / "site" / dist, dist.replace("-", "_")
        info = root / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (root / f"{module}.py").write_text(CODE)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        entry = f"[{registry.GROUP}]\n{name} = {target.format(module=module)}\n"
        (info / "entry_points.txt").write_text(entry)
        monkeypatch.syspath_prepend(str(root))
        installed.append(dist)
        monkeypatch.setenv("SCALEBENCH_PLUGINS", ",".join(installed))
        registry.table.cache_clear()

    registry.table.cache_clear()
    yield install
    registry.table.cache_clear()
    for dist in installed:
        sys.modules.pop(dist.replace("-", "_"), None)


def test_the_built_in_names_are_all_there() -> None:
    registry.table.cache_clear()
    assert sorted(registry.table()) == sorted(BUILT_IN + NOT_YET)
    assert {entry.origin for entry in registry.table().values()} == {"scalebench"}
    assert sorted(name for name, entry in registry.table().items() if entry.target is None) == sorted(NOT_YET)


@pytest.mark.parametrize("target", sorted(set(registry.BUILT_IN.values())))
def test_the_class_of_a_built_in_stands_where_the_table_says(target: str) -> None:
    """By its source, since importing would load the framework."""
    module, _, name = target.partition(":")
    path = Path(registry.__file__).parents[1] / f"{module.replace('.', '/')}.py"
    assert f"\nclass {name}(" in path.read_text()


def test_a_built_in_loads() -> None:
    from scalebench.adapters.null import Null

    assert registry.load("null") is Null


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mirorred", "no strategy 'mirorred'; did you mean 'mirrored'?"),
        ("zzz", f"no strategy 'zzz'; known: {', '.join(sorted(BUILT_IN + NOT_YET))}"),
    ],
)
def test_an_unknown_name(name: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.find(name)
    assert str(caught.value) == line


def test_an_announced_strategy_says_what_is_missing() -> None:
    with pytest.raises(InputError) as caught:
        registry.load("zero1")
    assert str(caught.value) == "strategy 'zero1': its PyTorch adapter is not part of this version of scalebench"


def test_a_plugin_is_found_and_loaded(plugin: Plugin) -> None:
    plugin()
    assert registry.find("my_strategy") == registry.Entry("my_strategy", "my_plugin:Mine", "my-plugin")
    loaded = registry.load("my_strategy")
    assert issubclass(loaded, Strategy) and loaded.__module__ == "my_plugin"


@pytest.mark.parametrize("chosen", ["", "another-plugin", "my-plugin-two,my"])
def test_a_plugin_that_is_not_chosen_is_hidden(plugin: Plugin, monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    plugin()
    monkeypatch.setenv("SCALEBENCH_PLUGINS", chosen)
    registry.table.cache_clear()
    with pytest.raises(InputError, match="no strategy 'my_strategy'"):
        registry.find("my_strategy")


def test_without_the_variable_every_plugin_counts(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin()
    monkeypatch.delenv("SCALEBENCH_PLUGINS")
    registry.table.cache_clear()
    assert registry.find("my_strategy").origin == "my-plugin"


def test_a_name_of_ours_cannot_be_taken(plugin: Plugin) -> None:
    plugin(name="ddp")
    with pytest.raises(InputError) as caught:
        registry.table()
    assert str(caught.value) == (
        "strategy 'ddp' is registered by both scalebench and my-plugin; uninstall one of them or set SCALEBENCH_PLUGINS"
    )


def test_two_plugins_of_one_name_are_both_named(plugin: Plugin) -> None:
    plugin(dist="first-plugin")
    plugin(dist="second-plugin")
    with pytest.raises(InputError) as caught:
        registry.table()
    assert "'my_strategy'" in str(caught.value)
    assert "first-plugin" in str(caught.value) and "second-plugin" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (
            "{module}:Missing",
            "strategy 'my_strategy' of my-plugin cannot be loaded from my_plugin:Missing: "
            "module 'my_plugin' has no attribute 'Missing'",
        ),
        (
            "not_there:Mine",
            "strategy 'my_strategy' of my-plugin cannot be loaded from not_there:Mine: No module named 'not_there'",
        ),
        (
            "{module}:Stranger",
            "strategy 'my_strategy' of my-plugin: my_plugin:Stranger is no subclass of scalebench.strategy.Strategy",
        ),
        (
            "{module}:CODE.x",
            "strategy 'my_strategy' of my-plugin cannot be loaded from my_plugin:CODE.x: "
            "module 'my_plugin' has no attribute 'CODE.x'",
        ),
    ],
)
def test_a_plugin_that_does_not_hold_what_it_registers(plugin: Plugin, target: str, line: str) -> None:
    plugin(target)
    with pytest.raises(InputError) as caught:
        registry.load("my_strategy")
    assert str(caught.value) == line


def test_missing_packages_and_how_to_get_them() -> None:
    assert registry.missing_packages(["json", "no_such_package_x", "numpy"]) == ["no_such_package_x"]
    assert registry.install_hint("no_such_package_x") == "pip install no_such_package_x"
    assert registry.install_hint("torch") == "pip install 'scalebench[torch]'"
    assert registry.install_hint("horovod") == "make horovod in a checkout of scalebench; see docs/horovod.md"
