"""What pages say is there: links, files, the site, their code, the notebook, the guides of plugins and of clusters."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from scalebench.__main__ import main
from scalebench.cli.commands import new
from scalebench.cluster.job_states import END_STATES, PERMANENT_REASONS
from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core import run_folder
from scalebench.core.errors import PluginError
from scalebench.core.spec import Config, SlurmSpec, StrategySpec
from scalebench.strategies import registry
from scalebench.strategies.registry import missing_packages
from scalebench.workloads import datasets, networks
from tests.builders.plugins import dists as dists  # a fixture
from tests.conftest import ROOT
from tests.docs import plugin_page
from tests.slurm.builders import render

OF_SITE = sorted(ROOT.glob("docs/**/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *OF_SITE, *ROOT.glob("plugins/*.md"), ROOT / "multirun/README.md"])
NO_MKDOCS = "mkdocs-material is not installed: pip install -e '.[docs]'"
OWN_MODEL = (ROOT / "docs/guides/own-model.md").read_text(encoding="utf-8")
OWN_FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", OWN_MODEL, flags=re.DOTALL))
OWN_COMMANDS = [
    shlex.split(line)[1:]
    for line in re.findall(r"^scalebench [^\n]*model[.=][^\n]*", OWN_MODEL, flags=re.MULTILINE)
    if "=/data/" not in line  # of pictures that are not here
]
LIBRARIES = {"model=hf": "transformers", "model=torchvision": "torchvision"}
SHORT = ["measure=quick", "measure.probes=false", "measure.monitor=false", "measure.max_s=1", "measure.min_s=0"]


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def test_links_lead_somewhere_and_pages_name_every_file():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:)([^)#]+)", read(page))]
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []
    kinds = ("_FILE", "_LOG", "_SCRIPT", "_FOLDER")
    names = {value for name, value in vars(run_folder).items() if name.endswith(kinds) and isinstance(value, str)}
    assert len(names) > 15 and [name for name in sorted(names) if name not in read("multirun/README.md")] == []
    assert set(OWN_FILES) == {"mynet.py", "mynet_keras.py", "mydata.py", "myloader.py"} and len(OWN_COMMANDS) >= 6
    assert all(len(text.strip().splitlines()) <= 20 for text in OWN_FILES.values())


def test_a_page_says_whom_it_is_for_and_what_people_write_is_short():
    """In its first line of text: below the title, in italics. README and all pages but the generated ones count."""
    for page in OF_SITE:
        lines = [line for line in read(page).splitlines() if line and not line.startswith("<!--")]
        assert lines[0].startswith("# ") and lines[1].startswith("*For ") and "*" in " ".join(lines[1:4])[1:], page
    pages = [ROOT / "README.md", *(page for page in OF_SITE if page.parent.name != "reference")]
    words = {str(page.relative_to(ROOT)): len(read(page).split()) for page in pages}
    # Pages for people who have GPUs come on top of what everybody reads.
    on_gpus = words.pop("docs/gpu.md") + words.pop("docs/guides/gpu-install.md")
    assert on_gpus < 1_000 and sum(words.values()) < 15_000, words
    assert len(read("README.md").splitlines()) <= 90


@pytest.mark.skipif(find_spec("material") is None, reason=NO_MKDOCS)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    built = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert built >= {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in OF_SITE}
    assert (tmp_path / "site/search/search_index.json").is_file()


@pytest.mark.slow
@pytest.mark.real
def test_benchmarks_run():
    """They still do what they are for; what they print is for people."""
    env = {**os.environ, "BENCHMARK_LAUNCHES": "1", "BENCHMARK_RUNS": "1000", "BENCHMARK_SOAK_RUNS": "20"}
    program = [sys.executable, "-m", "benchmarks"]
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    for subject in ("hand-written loop", "loading / parsing"):
        assert subject in done.stdout


def test_the_code_of_the_notebook_page(tmp_path, capsys):
    """All that starts no run, on a recorded sweep; test_the_notebook_runs starts some."""
    (tmp_path / "multirun").symlink_to(ROOT / "tests/golden/corpus/target")
    blocks = re.findall(r"```python\n(.*?)```", read("docs/guides/notebook.md"), re.DOTALL)
    reading = [block for block in blocks if "scalebench.run(" not in block]
    assert len(reading) == len(blocks) - 1 >= 3
    exec("\n".join(reading), {})
    assert "time_to_target_s" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(words, marks=[pytest.mark.extra(name) for model, name in LIBRARIES.items() if model in words])
        for words in OWN_COMMANDS
    ],
    ids=range(len(OWN_COMMANDS)),
)
def test_each_command_of_own_models_runs(arguments, tmp_path):
    """As it stands there, though not for long."""
    for name, text in OWN_FILES.items():
        (tmp_path / name).write_text(text)
    is_run = "check" not in arguments
    short = [*SHORT, f"hydra.sweep.dir={tmp_path}/out", f"hydra.run.dir={tmp_path}/out"] if is_run else []
    command = [sys.executable, "-m", "scalebench", *arguments, *short]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
    if is_run:
        results = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").rglob("result.json"))]
        expected = {"ok"} if not missing_packages(["horovod", "pytorch_lightning"]) else {"ok", "unsupported"}
        assert {result["status"] for result in results} <= expected
        ran = [result for result in results if result["status"] == "ok"]
        assert ran and all(result["workload"]["model_params"] for result in ran)
        if any(word.startswith("model=mynet") for word in arguments):
            torch = [result for result in ran if result["scale"]["framework"] == "torch"]
            assert all(result["workload"]["flops_per_sample"] for result in torch)
            assert {result["workload"]["model"] for result in ran} == {"mynet:build"}


NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
LIMIT_S = 1200  # of a cell, on a busy machine


def read_cells():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}


def test_the_notebook_holds_no_outputs_and_shows_what_the_guide_names():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    code = "\n".join(read_cells().values())
    guide = (ROOT / "docs/guides/notebook.md").read_text(encoding="utf-8")
    for name in ("%%writefile", "scalebench.run(", "scalebench.sweep(", ".answer", ".plot()", ".summary()"):
        assert name in code and name in guide, name


@pytest.fixture
def execute(tmp_path, monkeypatch):
    import nbclient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    resources = {"metadata": {"path": str(tmp_path)}}
    return lambda book: nbclient.NotebookClient(book, timeout=LIMIT_S, resources=resources).execute()


@pytest.mark.real
@pytest.mark.extra("nbclient", "ipykernel", "plotly")
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(execute, tmp_path):
    import nbformat

    book = nbformat.read(NOTEBOOK, as_version=4)
    execute(book)
    outputs = {cell["id"]: cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code"}
    run, sweep, answer, summary, plot, frame = [outputs[name] for name in read_cells()][1:]
    assert find_data(run, "text/plain")[-1] == "('ok', None)"
    assert any("ddp_gloo" in html and "<table>" in html for html in find_data(sweep, "text/html"))
    printed = "".join(output["text"] for each in (run, sweep) for output in each if output["output_type"] == "stream")
    assert "✓" in printed and "report: " in printed and "─" not in printed and "\x1b" not in printed
    assert "one device" in answer[0]["text"]
    assert "throughput_samples_per_s" in find_data(summary, "text/html")[-1]
    assert len(find_data(plot, "application/vnd.plotly.v1+json")) >= 2
    assert "ddp_gloo" in find_data(frame, "text/plain")[-1]
    assert (tmp_path / "my_training.py").exists() and list((tmp_path / "multirun").glob("*/report.html"))


def find_data(outputs, kind):
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


MINE, PROJECT = "scalebench-mine", Path("pyproject.toml")
FAULTS = plugin_page.faults()


def resolved(*arguments):
    return resolve.resolve(compose_config(["strategy=bare_torch", "gpus=1", *arguments]))


@pytest.fixture
def page(dists):
    """An installed plugin, of the template's files and those of the page; its pyproject.toml is added to."""
    template, reported = new.render("strategy", "mine"), plugin_page.files()
    project = tomllib.loads(template[PROJECT] + reported[PROJECT])["project"]
    points = {group.removeprefix("scalebench."): named for group, named in project["entry-points"].items()}
    files = {path: text for path, text in {**template, **reported}.items() if path.parts[0] == "src"}
    dists.add(MINE, {str(path.relative_to("src")): text for path, text in files.items()}, points)


def test_the_model_of_the_page(page):
    spec = resolved("model=one_hidden")
    network = networks.build_network(spec.config.model)
    assert network.parameters == spec.config.model.params
    assert spec.config.dataset.name == "random" and spec.global_batch == 32
    narrow = resolved("model=one_hidden", "model.options.width=8", "model.params=null")
    assert networks.build_network(narrow.config.model).arrays
    spec = resolved("model=one_hidden", "dataset.size=100")
    datasets.prepare(spec.config)
    train, validation = datasets.open_sources(spec, 0, 1)
    assert (train.samples, validation.samples if validation else None) == (98, 2)
    batch = next(iter(train))
    assert batch.inputs.shape == (32, 32) and batch.targets.shape == (32, 1)


def test_keys_of_a_strategy_that_the_page_tells_of():
    blocks = [block for block in plugin_page.blocks("yaml") if not block.startswith(("defaults", "name"))]
    reported = [yaml.safe_load(block) for block in blocks]
    keys = ["options choices at_least", "cannot", "approximate tolerance", "framework requires baseline"]
    assert [" ".join(each) for each in reported] == keys
    resolved(*(f"strategy.{key}=" + str(value).replace("'", "") for key, value in reported[3].items()), "dry_run=true")


# What is wrong -> how such a plugin is made.
MADE = {
    "the import fails": {"code": "1 / 0\n"},
    "the YAML names no class": {"target": None},
    "a name is taken by a built-in": {"name": "ddp"},
}


def problem(name):
    with pytest.raises(PluginError) as caught:
        registry.refuse_broken_plugins(Config(strategy=StrategySpec(name=name)))
        registry.load_strategy(name)
    return str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_and_their_lines(fault, dists):
    assert set(MADE) == set(FAULTS)
    dists.strategy(dist=MINE, **MADE[fault])
    expected = FAULTS[fault].replace("scalebench_mine.strategy:", "scalebench_mine.code:")
    assert problem(MADE[fault].get("name", "mine")) == expected


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
    text = render(resolve.resolve(composed(own, "strategy=simulated", "gpus=8", *arguments)), tmp_path)
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
