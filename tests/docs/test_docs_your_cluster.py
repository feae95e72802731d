"""The recipe of docs/guides/cluster.md works: its YAML composes as it says, and its tables tell the truth."""

import re
import shlex

import pytest
from omegaconf import OmegaConf

from scalebench.__main__ import main
from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core.spec import SlurmSpec
from scalebench.slurm import submit
from scalebench.slurm.job_states import END_STATES, PERMANENT_REASONS
from tests.conftest import ROOT

PAGE = (ROOT / "docs/guides/cluster.md").read_text(encoding="utf-8")
NAME = "mine"


@pytest.fixture
def own(tmp_path):
    """The folder of the recipe, with its YAML."""
    actual = re.findall(r"^    ```yaml\n(.*?)^    ```", PAGE, re.MULTILINE | re.DOTALL)
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
    table = PAGE[PAGE.index("## What becomes of each key") :]
    assert all(f"--{key}" in table or f"`{key}`" in table for key in wanted if key != "mail-type")


def test_the_states_are_those_that_there_are_and_every_key_is_explained():
    table = PAGE[PAGE.index("| SLURM says") :].split("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z_, ]+?)(?: without a row)? \| `(\w+)`", table, re.MULTILINE)
    reported = {state: status for states, status in rows for state in states.split(", ")}
    assert len(reported) >= 9 and reported == {state: END_STATES[state][0] for state in reported}
    assert set(re.findall(r"(?:Partition|Invalid)\w+", table)) <= set(PERMANENT_REASONS)
    text = PAGE + (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")  # the tables of all keys
    assert [key for key in vars(SlurmSpec()) if not re.search(rf"[`.]{re.escape(key)}[`=]", text)] == []


def test_settings_in_the_text_compose(own):
    """Those in backticks, such as `hardware.interface=ib0`; the first value of several."""
    actual = re.findall(r"`((?:hardware|measure|dataset)\.[a-z_.A-Z]+=[^`\n]+)`", PAGE)
    arguments = [word for text in actual for word in shlex.split(text)]
    assert len(arguments) >= 10
    for word in dict.fromkeys(arguments):
        key, _, value = word.partition("=")
        first = value if value.startswith(("[", "{")) else value.split(",")[0]
        resolve.check_config(composed(own, f"{key}={first}"))
