"""`scalebench new` strategy, dataset and hardware: what they write, and what they refuse in one line."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.__main__ import run_command
from scalebench.cli.commands import new
from scalebench.cli.commands.new_hardware import NodeShape, describe_nodes
from scalebench.cluster.partition import parse_sinfo
from scalebench.cluster.site_check import OK, check_partition
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.spec import SlurmSpec
from tests.builders.plugins import dists as dists  # a fixture
from tests.conftest import ROOT
from tests.slurm.builders import Tools, render

CODE = {"strategy": Path("src/scalebench_my_ring/strategy.py"), "dataset": Path("src/scalebench_my_ring/samples.py")}


def yaml_file(kind):
    return Path(f"src/scalebench_my_ring/conf/{kind}/my_ring.yaml")


@pytest.fixture(scope="module", params=CODE)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def texts(kind):
    return new.render(kind, "my_ring")


def refused(*words):
    with pytest.raises(InputError) as caught:
        run_command("new", list(words))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_and_next_steps(capsys, kind, texts):
    home = Path("my plugins")
    home.mkdir()
    assert run_command("new", [kind, "my_ring", "--into", str(home)]) == 0
    folder = home / "scalebench-my-ring"
    written = {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert written == texts and {CODE[kind], yaml_file(kind), Path("tests/test_my_ring.py")} < set(written)
    out = capsys.readouterr().out
    assert all(f"\n  {path}\n" in out for path in written)
    assert "pip install -e 'my plugins/scalebench-my-ring[test]'\n" in out and "scalebench check my_ring\n" in out


def test_entry_points_and_yaml_name_what_there_is(kind, texts):
    """And no tool takes the template for code."""
    project = tomllib.loads(texts[Path("pyproject.toml")])["project"]
    points = project["entry-points"]
    stated = OmegaConf.to_container(OmegaConf.create(texts[yaml_file(kind)]))
    assert isinstance(stated, dict) and stated["name"] == "my_ring" and stated["options"]
    adapter = stated["adapter"] if kind == "strategy" else points["scalebench.datasets"]["my_ring"]
    module, _, name = adapter.partition(":")
    assert Path("src", *module.split(".")).with_suffix(".py") == CODE[kind]
    assert name in {getattr(node, "name", None) for node in ast.parse(texts[CODE[kind]]).body}
    (folder,) = points["scalebench.configs"].values()
    assert yaml_file(kind).is_relative_to(Path("src", *folder.split(".")))
    assert project["name"] == "scalebench-my-ring"
    files = [path for path in new.TEMPLATES.rglob("*") if path.is_file()]
    assert files and {path.suffix for path in files} == {new.TEMPLATE_SUFFIX}


def test_it_is_clean(kind, texts, tmp_path):
    """By the rules of this project, and with nothing left of the template's own language."""
    run_command("new", [kind, "my_ring"])
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    passed = ["--isolated", "--line-length", str(rules["line-length"]), "."]
    for words in (["check", "--no-cache", "--select", ",".join(rules["lint"]["select"])], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, *passed]
        done = subprocess.run(command, cwd=tmp_path / "scalebench-my-ring", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not [path for path, text in texts.items() if re.search(r"\{[{%]|[%}]\}", text) or "NAME" in f"{path}{text}"]
    assert max(len(text.splitlines()) for text in texts.values()) < 120


def test_names_and_folders_that_are_taken(dists, tmp_path):
    dists.strategy("theirs", "their-plugin")
    assert "from their-plugin;" in refused("strategy", "theirs")
    assert refused("dataset", "materials") == "dataset 'materials' is there already, from scalebench; take another name"
    run_command("new", ["strategy", "mine"])
    kept = (tmp_path / "scalebench-mine/README.md").read_text()
    assert refused("strategy", "mine").startswith("scalebench-mine is there already; take another name")
    assert (tmp_path / "scalebench-mine/README.md").read_text() == kept
    assert refused("strategy", "a" * 300).endswith("File name too long; take another place with --into=FOLDER")


# `scalebench new hardware NAME`: the YAML of a partition, from answers of a fake SLURM, composes and becomes a job.
GIB = 2**30
SINFO = """\
g1|gpu|idle|128|2:32:2|512000|gpu:h100:4(S:0-1)|1-00:00:00|(null)
g2|gpu|mixed|128|2:32:2|515000|gpu:h100:4(S:0-1)|1-00:00:00|(null)
g3|gpu|down*|128|2:32:2|515000|gpu:h100:4(S:0-1)|1-00:00:00|(null)
c1|main*|idle|8|2:4:1|8000|(null)|30:00|(null)
"""
PARTITIONS = "PartitionName=gpu AllowAccounts=p_a,p_b AllowQos=fast\n   MaxNodes=2 MaxTime=1-00:00:00\n"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools = Tools(tmp_path)
    tools.put("sinfo", SINFO)
    tools.put("scontrol", PARTITIONS)
    return tools


def new_hardware(tools, *words):
    return run_command("new", ["hardware", *words, "--bin", str(tools.folder)])


def composed(*arguments):
    return compose_config([f"hydra.searchpath=[file://{Path.cwd()}]", *arguments])


def test_a_partition_with_gpus(cluster, capsys):
    assert new_hardware(cluster, "mine", "--partition", "gpu") == 0
    out = capsys.readouterr().out
    assert out.startswith("hardware/mine.yaml: partition gpu, 3 nodes with 4 x h100, 64 cores, 537 GB\n")
    assert "nodes have 500 to 502 GiB of memory: the fewest count" in out
    assert "scalebench doctor --config-dir . hardware=mine\n" in out
    hardware = composed("hardware=mine").hardware
    assert (hardware.name, hardware.devices, hardware.gpus_per_node, hardware.cpus_per_node) == ("mine", "cuda", 4, 64)
    assert (hardware.max_nodes, hardware.memory_bytes, hardware.gpu_model) == (2, 512000 * 2**20, "h100")
    assert hardware.slurm == SlurmSpec("gpu", exclusive=True, gres="gpu:h100:{gpus}", bin=str(cluster.folder))
    assert (hardware.scheduler, hardware.this_machine, hardware.sources) == ("slurm", False, [])
    text = Path("hardware/mine.yaml").read_text()
    assert "max_nodes: 2 # 2 of 3 nodes were up\n" in text
    script = render(resolve(composed("hardware=mine", "strategy=simulated", "gpus=8")), Path("f"))
    for line in ("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=16", "--gres=gpu:h100:4", "--partition=gpu"):
        assert f"#SBATCH {line}\n" in script


def test_the_default_partition_without_gpus(cluster):
    cluster.put("scontrol", "PartitionName=main AllowAccounts=ALL AllowQos=ALL MaxNodes=UNLIMITED\n")
    Path("sub folder").mkdir()
    assert new_hardware(cluster, "cpus-1", "--into", "sub folder") == 0
    hardware = compose_config([f"hydra.searchpath=['file://{Path.cwd()}/sub folder']", "hardware=cpus-1"]).hardware
    assert (hardware.devices, hardware.gpus_per_node, hardware.cpus_per_node, hardware.max_nodes) == ("cpu", 2, 8, 1)
    assert (hardware.slurm.partition, hardware.slurm.time_minutes, hardware.gpu_model) == ("main", 30, None)
    # Nodes that differ.
    notes = ["the partition has other GPUs, too: 5 x v100", "nodes have 2 to 4 GPUs: the fewest count"]
    notes += [f"nodes have {text}: the fewest count" for text in ("4 to 8 cores", "1 to 2 GiB of memory")]
    assert describe_nodes(MIXED) == NodeShape(2, "cuda", 2, "a100", 4, GIB, notes)
    shape = describe_nodes(MIXED, cpu_only=True)
    assert (shape.nodes, shape.devices, shape.devices_per_node, shape.gpu_type, shape.cores) == (4, "cpu", 1, "", 2)


MIXED = parse_sinfo(
    "a|p|idle|8|1:8:1|1024|gpu:a100:2,gpu:v100:1|1:00|x\nb|p|idle|4|1:4:1|2048|gpu:a100:4|1:00|x\n"
    "c|p|idle|8|2:4:1|1024|gpu:v100:4|1:00|x\nd|p|idle|2|1:2:1|1024|(null)|1:00|x\n"
)


@pytest.mark.parametrize(("sinfo", "gres", "gpus"), [
    ("a|p*|idle|8|1:8:1|9|gpu:3090:4,gpu:2080ti:2|1:00|x\n", "gpu:3090:{gpus}", 4),
    ("a|p*|idle|8|1:8:1|9|gpu:1g.5gb:7|1:00|x\n", "gpu:1g.5gb:{gpus}", 7),
    (
        "a|p*|idle|8|1:8:1|9|gpu:a100:4(S:0-1)|1:00|x\nb|p*|idle|4|1:4:1|8|gpu:a100:2|1:00|x\n"
        "v|p*|idle|2|1:2:1|7|gpu:v100:4|1:00|x\n",
        "gpu:a100:{gpus}",
        2,
    ),
])  # fmt: skip
def test_doctor_agrees_with_the_file_for_every_kind_of_gpu(cluster, sinfo, gres, gpus):
    cluster.put("sinfo", sinfo)
    cluster.put("scontrol", "PartitionName=p AllowAccounts=ALL AllowQos=ALL MaxNodes=UNLIMITED\n")
    new_hardware(cluster, "mine")
    config = composed("hardware=mine", "measure.timeout_s=10")
    assert (config.hardware.slurm.gres, config.hardware.gpus_per_node) == (gres, gpus)
    config.hardware.slurm.time_minutes = 1
    assert {row.key for row in check_partition(config, parse_sinfo(sinfo)) if row.verdict != OK} == set()


def test_refusals_of_one_line(cluster, monkeypatch):
    words = ["hardware", "--bin", str(cluster.folder)]
    assert "hardware 'alpha' is there already, in " in refused(*words, "alpha")
    assert refused(*words, "mine", "--partition", "gpus").startswith("no partition 'gpus'; did you mean 'gpu'?")
    assert not Path("hardware").exists()
    new_hardware(cluster, "mine", "--partition", "gpu")
    assert refused(*words, "mine").startswith("hardware/mine.yaml is there already; take another name, or remove it")
    monkeypatch.setenv("PATH", "")
    assert refused("hardware", "other").startswith("SLURM does not describe its partitions: there is no sinfo")
