"""The notebook of the examples, executed as a person would: a run, a sweep, its answer and its charts."""

import json

import pytest

from tests.conftest import ROOT

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
