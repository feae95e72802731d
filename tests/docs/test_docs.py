"""What the documentation says is there: links, files, its site, the code of its pages, and the notebook, executed."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest

from scalebench.core import run_folder
from scalebench.strategies.registry import missing_packages
from tests.conftest import ROOT

OF_SITE = sorted(ROOT.glob("docs/**/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *OF_SITE, *ROOT.glob("plugins/*.md"), ROOT / "multirun/README.md"])
NO_MKDOCS = "mkdocs-material is not installed: pip install -e '.[docs]'"
OWN_MODEL = (ROOT / "docs/guides/own-model.md").read_text(encoding="utf-8")
OWN_FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", OWN_MODEL, flags=re.DOTALL))
OWN_COMMANDS = [
    shlex.split(line)[1:] for line in re.findall(r"^scalebench [^\n]*model[.=][^\n]*", OWN_MODEL, flags=re.MULTILINE)
]
LIBRARIES = {"model=hf": "transformers", "model=torchvision": "torchvision"}
SHORT = ["measure=quick", "measure.probes=false", "measure.monitor=false", "measure.max_s=1", "measure.min_s=0"]


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def test_links_lead_somewhere_and_the_page_of_the_results_folder_names_every_file():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:)([^)#]+)", read(page))]
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []
    kinds = ("_FILE", "_LOG", "_SCRIPT", "_FOLDER")
    names = {value for name, value in vars(run_folder).items() if name.endswith(kinds) and isinstance(value, str)}
    assert len(names) > 15 and [name for name in sorted(names) if name not in read("multirun/README.md")] == []


def test_a_page_says_whom_it_is_for_and_what_people_write_is_short():
    """In its first line of text: below the title, in italics. README and all pages but the generated ones count."""
    for page in OF_SITE:
        lines = [line for line in read(page).splitlines() if line and not line.startswith("<!--")]
        assert lines[0].startswith("# ") and lines[1].startswith("*For ") and "*" in " ".join(lines[1:4])[1:], page
    pages = [ROOT / "README.md", *(page for page in OF_SITE if page.parent.name != "reference")]
    words = {str(page.relative_to(ROOT)): len(read(page).split()) for page in pages}
    # Pages for people who have GPUs come on top of what everybody reads.
    on_gpus = words.pop("docs/gpu.md") + words.pop("docs/guides/gpu-install.md")
    assert on_gpus < 1_000 and sum(words.values()) < 18_000, words
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
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for subject in ("hand-written loop", "growth of anonymous memory", "loading / parsing"):
        assert subject in done.stdout


def test_the_code_of_the_notebook_page(tmp_path, capsys):
    """All that starts no run, on a recorded sweep; test_notebook.py starts some."""
    (tmp_path / "multirun").symlink_to(ROOT / "tests/golden/corpus/target")
    blocks = re.findall(r"```python\n(.*?)```", read("docs/guides/notebook.md"), re.DOTALL)
    reading = [block for block in blocks if "scalebench.run(" not in block]
    assert len(reading) == len(blocks) - 1 >= 3
    exec("\n".join(reading), {})
    assert "time_to_target_s" in capsys.readouterr().out


def test_the_files_and_commands_of_own_models():
    assert set(OWN_FILES) == {"mynet.py", "mynet_keras.py", "mydata.py"} and len(OWN_COMMANDS) >= 6
    assert all(len(text.strip().splitlines()) <= 20 for text in OWN_FILES.values())


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
        if "model=custom" in arguments:
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


PROGRESS = """\
import time
from scalebench.sweeps.console import Console

console = Console()
with console._show_status("one [bold]<b>") as update:
    time.sleep(0.6)
    update("two")
    time.sleep(0.6)
console.print_line("✓ done")
"""


@pytest.mark.extra("nbclient", "ipykernel")
@pytest.mark.filterwarnings("ignore")
def test_progress_is_one_line_below_the_cell(execute):
    """The stream of a notebook says that it is a terminal, and would keep each picture of a spinner."""
    from nbformat.v4 import new_code_cell, new_notebook

    book = new_notebook(cells=[new_code_cell(PROGRESS)])
    execute(book)
    display, stream = book.cells[0].outputs
    assert (display.output_type, display.data) == ("display_data", {"text/plain": "", "text/html": ""})
    assert (stream.name, stream.text) == ("stdout", "✓ done\n")


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
