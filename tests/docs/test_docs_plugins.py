"""docs/guides/plugins.md: its files make a plugin, its faults have its lines. Output: test_plugin_from_template.py."""

import tomllib
from pathlib import Path

import pytest
import yaml

from scalebench.cli.commands import new
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core import config_files, plugins
from scalebench.core.errors import PluginError
from scalebench.core.spec import Config, StrategySpec
from scalebench.strategies import registry
from scalebench.workloads import datasets, networks
from tests.builders.plugins import CODE
from tests.builders.plugins import dists as dists  # a fixture
from tests.docs import plugin_page

MINE, PROJECT = "scalebench-mine", Path("pyproject.toml")
FAULTS = plugin_page.faults()


def resolved(*arguments):
    return resolve(compose_config(["strategy=bare_torch", "gpus=1", *arguments]))


@pytest.fixture
def page(dists):
    """An installed plugin, of the template's files and those of the page; its pyproject.toml is added to."""
    template, reported = new.render("mine"), plugin_page.files()
    project = tomllib.loads(template[PROJECT] + reported[PROJECT])["project"]
    points = {group.removeprefix("scalebench."): named for group, named in project["entry-points"].items()}
    del points["api"]
    files = {path: text for path, text in {**template, **reported}.items() if path.parts[0] == "src"}
    dists.add(
        MINE, {str(path.relative_to("src")): text for path, text in files.items()}, points, api=plugins.API_VERSION
    )


def test_the_model_and_the_data_of_the_page(page):
    spec = resolved("model=one_hidden")
    network = networks.build_network(spec.config.model)
    assert network.parameters == spec.config.model.params
    assert spec.config.dataset.name == "ripples" and spec.global_batch == 32
    narrow = resolved("model=one_hidden", "model.options.width=8", "model.params=null")
    assert networks.build_network(narrow.config.model).arrays
    assert resolved("hardware=our_box", "strategy=ddp_gloo", "gpus=4").config.hardware.gpus_per_node == 4
    steps = yaml.safe_load(plugin_page.files()[Path(".github/workflows/test.yml")])["jobs"]["test"]["steps"]
    assert steps[-1] == {"run": "python -m pytest"}, "its CI runs the tests"
    spec = resolved("model=one_hidden", "dataset.size=100")
    datasets.prepare(spec.config)
    train, validation = datasets.open_sources(spec, 0, 1)
    assert (train.samples, validation.samples if validation else None) == (75, 25)
    batch = next(iter(train))
    assert batch.inputs.shape == (32, 32) and batch.targets.shape == (32, 1)


def test_keys_of_a_strategy_that_the_page_tells_of():
    blocks = [block for block in plugin_page.blocks("yaml") if not block.startswith(("defaults", "name"))]
    reported = [yaml.safe_load(block) for block in blocks]
    keys = ["options choices at_least", "approximate tolerance", "framework requires baseline"]
    assert [" ".join(each) for each in reported] == keys
    resolved(*(f"strategy.{key}=" + str(value).replace("'", "") for key, value in reported[2].items()), "dry_run=true")


OTHER = (
    f"from dataclasses import dataclass\n{CODE}    @dataclass\n    class Options:\n        message_mb: float = 25.0\n"
)
# What is wrong -> how such a plugin is made.
MADE = {
    "the import fails": {"code": "1 / 0\n"},
    "YAML and class have other options": {"code": OTHER, "yaml": "name: mine\noptions: {momentum: 0.9}\n"},
    "there is no YAML": {"yaml": None},
    "a name is taken by a built-in": {"name": "ddp"},
    "it is written for a later API": {"api": 99},
}


def problem(name):
    with pytest.raises(PluginError) as caught:
        registry.refuse_broken_plugins(Config(strategy=StrategySpec(name=name)))
        options = config_files.read_yaml(config_files.list_options("strategy")[name])["options"]
        registry.check_options_agree(name, registry.load_strategy(name), options)
    return str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_and_their_lines(fault, dists):
    assert set(MADE) == set(FAULTS)
    dists.strategy(dist=MINE, **MADE[fault])
    name = MADE[fault].get("name", "mine")
    assert problem(name) == FAULTS[fault].replace("scalebench_mine.strategy:", "scalebench_mine.code:")
