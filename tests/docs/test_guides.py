"""docs/guides/plugins.md and cluster.md: their files, the faults that they name, and the truth of their tables."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from scalebench.__main__ import main
from scalebench.cli.commands import new
from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core import config_files, plugins
from scalebench.core.errors import PluginError
from scalebench.core.spec import Config, SlurmSpec, StrategySpec
from scalebench.slurm import submit
from scalebench.slurm.job_states import END_STATES, PERMANENT_REASONS
from scalebench.strategies import registry
from scalebench.workloads import datasets, networks
from tests.builders.plugins import CODE
from tests.builders.plugins import dists as dists  # a fixture
from tests.conftest import ROOT
from tests.docs import plugin_page

MINE, PROJECT = "scalebench-mine", Path("pyproject.toml")
FAULTS = plugin_page.faults()


def resolved(*arguments):
    return resolve.resolve(compose_config(["strategy=bare_torch", "gpus=1", *arguments]))


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


CLUSTER_PAGE = (ROOT / "docs/guides/cluster.md").read_text(encoding="utf-8")
NAME = "mine"


@pytest.fixture
def own(tmp_path):
    """The folder of the recipe, with its YAML."""
    actual = re.findall(r"^    ```yaml\n(.*?)^    ```", CLUSTER_PAGE, re.MULTILINE | re.DOTALL)
    assert len(actual) == 1
    folder = tmp_path / "own"
    (folder / "hardware").mkdir(parents=True)
    (folder / "hardware" / f"{NAME}.yaml").write_text(re.sub("^    ", "", actual[0], flags=re.MULTILINE))
    return folder


def composed(own, *arguments):
    return compose_config([f"hydra.searchpath=[file://{own}]", f"hardware={NAME}", *arguments])


def test_the_yaml_stands_on_one_of_ours(own, capsys):
    tree = OmegaConf.load(own / "hardware" / f"{NAME}.yaml")
    assert len(tree) == 11 and "defaults" in tree
    hardware = composed(own).hardware
    assert (hardware.name, hardware.gpus_per_node, hardware.max_nodes) == ("mine", 4, 6)
    assert hardware.slurm == SlurmSpec("gpu", account="p_ml", gres="gpu:h100:{gpus}", exclusive=True)
    assert (hardware.this_machine, hardware.scheduler, hardware.node_copy) == (False, "slurm", None)
    # nothing of the machine below is left that would be wrong here
    assert not any(hardware.links.values()) and hardware.unsupported == {} and hardware.sources == ["our admins"]
    assert main(["--config-dir", str(own), f"hardware={NAME}", "strategy=simulated", "gpus=1", "dry_run=true"]) == 0
    assert "[1/1] simulated gpus=1" in capsys.readouterr().out
    assert main([f"hardware={NAME}"]) == 2  # not without the folder


def test_it_becomes_the_job_that_the_table_says(own, tmp_path):
    settings = {
        "qos": "fast", "reservation": "course", "constraint": "ssd", "memory": "64G", "time_minutes": "7",
        "lines": '["--mail-type=END"]', "setup": '["module load CUDA"]',
    }  # fmt: skip
    arguments = [f"hardware.slurm.{key}={value}" for key, value in settings.items()]
    text = submit.render_script(resolve.resolve(composed(own, "strategy=simulated", "gpus=8", *arguments)), tmp_path)
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    options = dict(line.partition("=")[::2] for line in lines)
    wanted = {
        "nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "16", "gres": "gpu:h100:4", "mem": "64G", "time": "7",
        "partition": "gpu", "account": "p_ml", "qos": "fast", "reservation": "course", "constraint": "ssd",
        "exclusive": "", "mail-type": "END",
    }  # fmt: skip
    assert {key: options.get(key) for key in wanted} == wanted
    assert re.search(r"^module load CUDA$", text, re.MULTILINE)
    table = CLUSTER_PAGE[CLUSTER_PAGE.index("## What becomes of each key") :]
    assert all(f"--{key}" in table or f"`{key}`" in table for key in wanted if key != "mail-type")


def test_the_states_are_those_that_there_are_and_every_key_is_explained():
    table = CLUSTER_PAGE[CLUSTER_PAGE.index("| SLURM says") :].split("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z_, ]+?)(?: without a row)? \| `(\w+)`", table, re.MULTILINE)
    reported = {state: status for states, status in rows for state in states.split(", ")}
    assert len(reported) >= 9 and reported == {state: END_STATES[state][0] for state in reported}
    assert set(re.findall(r"(?:Partition|Invalid)\w+", table)) <= set(PERMANENT_REASONS)
    text = CLUSTER_PAGE + (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")  # the tables of all keys
    assert [key for key in vars(SlurmSpec()) if not re.search(rf"[`.]{re.escape(key)}[`=]", text)] == []


def test_settings_in_the_text_compose(own):
    """Those in backticks, such as `hardware.interface=ib0`; the first value of several."""
    actual = re.findall(r"`((?:hardware|measure|dataset)\.[a-z_.A-Z]+=[^`\n]+)`", CLUSTER_PAGE)
    arguments = [word for text in actual for word in shlex.split(text)]
    assert len(arguments) >= 10
    for word in dict.fromkeys(arguments):
        key, _, value = word.partition("=")
        first = value if value.startswith(("[", "{")) else value.split(",")[0]
        resolve.check_config(composed(own, f"{key}={first}"))
