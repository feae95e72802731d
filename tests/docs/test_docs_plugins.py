"""docs/guides/plugins.md: its files make a plugin, its faults have its lines. Output: test_plugin_from_template.py."""

import re
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
from tests.docs.plugin_page import ANY, answers

MINE, PROJECT = "scalebench-mine", Path("pyproject.toml")
PAGE_FAULTS = plugin_page.faults()
# What is wrong -> the line, of those that explain themselves and that the page leaves out.
FAULTS = PAGE_FAULTS | {
    "the module is not there": "strategy 'mine' of scalebench-mine cannot be loaded from scalebench_mine.nowhere:Mine: "
    "No module named 'scalebench_mine.nowhere'",
    "the class is not there": "strategy 'mine' of scalebench-mine cannot be loaded from scalebench_mine.strategy:Yours"
    ": module 'scalebench_mine.strategy' has no attribute 'Yours'",
    "the class is no strategy": "strategy 'mine' of scalebench-mine: scalebench_mine.strategy:Mine is no subclass of "
    "scalebench.plugin_api.Strategy",
    "a method is missing": "strategy 'mine' of scalebench-mine: scalebench_mine.strategy:Mine lacks what each strategy "
    "has: broadcast",
    "there is no entry point": "strategy 'mine': scalebench-mine brings strategy/mine.yaml and no entry point "
    "scalebench.strategies of that name",
    "two plugins have one name": "strategy 'mine' is registered by both another-mine and scalebench-mine; uninstall "
    "one of them or set SCALEBENCH_PLUGINS",
    "its baseline is not there": "strategy 'mine' of scalebench-mine names the baseline 'bare_touch': no strategy "
    "'bare_touch'; did you mean 'bare_torch'?",
    "the folder of YAML files is not there": "plugin scalebench-mine registers the config package "
    "'scalebench_mine.nowhere', which is not there: its YAML files are left out",
}


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


def test_the_model_of_the_page(page):
    spec = resolved("model=one_hidden")
    network = networks.build_network(spec.config.model)
    assert network.parameters == spec.config.model.params
    assert spec.config.dataset.name == "ripples" and spec.global_batch == 32
    narrow = resolved("model=one_hidden", "model.options.width=8", "model.params=null")
    assert networks.build_network(narrow.config.model).arrays
    assert resolved("hardware=our_box", "strategy=ddp_gloo", "gpus=4").config.hardware.gpus_per_node == 4
    steps = yaml.safe_load(plugin_page.files()[Path(".github/workflows/test.yml")])["jobs"]["test"]["steps"]
    assert steps[-1] == {"run": "python -m pytest"}, "its CI runs the tests"


def test_the_data_of_the_page(page):
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


STRATEGY = "scalebench_mine.strategy:Mine"
OTHER = (
    f"from dataclasses import dataclass\n{CODE}    @dataclass\n    class Options:\n        message_mb: float = 25.0\n"
)
ABSTRACT = f"{CODE}    broadcast = abstractmethod(lambda self, value: value)\n"
# What is wrong -> how such a plugin is made: code, YAML, entry points.
MADE = {
    "the module is not there": lambda dists: mine(dists, target="scalebench_mine.nowhere:Mine"),
    "the class is not there": lambda dists: mine(dists, target="scalebench_mine.strategy:Yours"),
    "the import fails": lambda dists: mine(dists, "1 / 0\n"),
    "the class is no strategy": lambda dists: mine(dists, "class Mine:\n    pass\n"),
    "a method is missing": lambda dists: mine(dists, f"from abc import abstractmethod\n{ABSTRACT}"),
    "YAML and class have other options": lambda dists: mine(dists, OTHER, "name: mine\noptions: {momentum: 0.9}\n"),
    "there is no YAML": lambda dists: mine(dists, yaml=None),
    "there is no entry point": lambda dists: dists.add(MINE, YAML_FILE, {"configs": CONFIGS}),
    "a name is taken by a built-in": lambda dists: mine(dists, name="ddp"),
    "two plugins have one name": lambda dists: (mine(dists), mine(dists, dist="another-mine")),
    "it is written for a later API": lambda dists: mine(dists, api=99),
    "its baseline is not there": lambda dists: mine(dists),
    "the folder of YAML files is not there": lambda dists: mine(dists, folder="scalebench_mine.nowhere"),
}
YAML_FILE = {"scalebench_mine/__init__.py": "", "scalebench_mine/conf/strategy/mine.yaml": "name: mine\n"}
CONFIGS = {"scalebench_mine": "scalebench_mine.conf"}


def mine(
    dists,
    code=CODE,
    yaml="name: mine\n",
    name="mine",
    target=STRATEGY,
    dist=MINE,
    folder="scalebench_mine.conf",
    api=None,
):
    """A distribution with that strategy."""
    package = dist.replace("-", "_")
    files = {f"{package}/__init__.py": "", f"{package}/strategy.py": code}
    files |= {} if yaml is None else {f"{package}/conf/strategy/{name}.yaml": yaml}
    points = {"strategies": {name: target.replace("scalebench_mine", package)}}
    points |= {} if yaml is None else {"configs": {package: folder.replace("scalebench_mine", package)}}
    dists.add(dist, files, points, api=api)


def problem(line):
    """What a run with that strategy would fail with."""
    name = re.search(r"strategy '(\w+)'", line)
    if name is None:  # it fails none
        return next(iter(config_files.find_config_files().warnings))
    baseline = re.search(r"baseline '(\w+)'", line)
    config = Config(strategy=StrategySpec(name=name[1], baseline=baseline[1] if baseline else None))
    with pytest.raises(PluginError) as caught:
        registry.refuse_broken_plugins(config)
        path = config_files.list_options("strategy")[name[1]]
        registry.check_options_agree(
            name[1], registry.load_strategy(name[1]), config_files.read_yaml(path).get("options") or {}
        )
    return str(caught.value)


def test_each_fault_of_the_page_is_made():
    assert set(MADE) == set(FAULTS) and len(PAGE_FAULTS) == 5


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_and_their_lines(fault, dists):
    MADE[fault](dists)
    assert problem(FAULTS[fault]) == FAULTS[fault]


def test_printed_lines_are_compared():
    """By the helper that the commands of the page are compared with."""
    printed = "\n  one   two \n\n three 3.5 4\nfour\n"
    for right in (["one two", "three 3.5 4", "four"], [ANY], ["one ...", ANY, "four"], [ANY, "three ... 4", ANY]):
        assert answers(right, printed)
    for wrong in (["one two"], [ANY, "three ... 5", ANY], ["one", ANY], [ANY, "fours"], []):
        assert not answers(wrong, printed)
