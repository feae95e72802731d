"""The notebook of the examples, executed as a person would: a run, a sweep, its answer and its charts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
LIMIT_S = 1200  # of a cell, on a busy machine


def read_cells() -> dict[str, str]:
    """Return the sources of the code cells by their ids."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}


def test_the_notebook_holds_no_outputs_and_shows_what_the_guide_names() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    code = "\n".join(read_cells().values())
    guide = (ROOT / "docs/guides/notebook.md").read_text(encoding="utf-8")
    for name in ("%%writefile", "scalebench.run(", "scalebench.sweep(", ".answer", ".plot()", ".summary()"):
        assert name in code and name in guide, name


@pytest.mark.real
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    pytest.importorskip("plotly", reason="plotly is not installed")
    import nbformat

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("SCALEBENCH_HISTORY", "off")
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(book, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {cell["id"]: cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code"}
    run, sweep, answer, summary, plot, frame = [outputs[name] for name in read_cells()][1:]
    assert find_data(run, "text/plain")[-1] == "('ok', None)"
    assert any("ddp_gloo" in html and "<table>" in html for html in find_data(sweep, "text/html"))
    printed = "".join(output["text"] for each in (run, sweep) for output in each if output["output_type"] == "stream")
    assert "✓" in printed and "report: " in printed and "─" not in printed
    assert "one device" in answer[0]["text"]
    assert "throughput_samples_per_s" in find_data(summary, "text/html")[-1]
    assert len(find_data(plot, "application/vnd.plotly.v1+json")) >= 2
    assert "ddp_gloo" in find_data(frame, "text/plain")[-1]
    assert (tmp_path / "my_training.py").exists() and list((tmp_path / "multirun").glob("*/report.html"))


def find_data(outputs: list[Any], kind: str) -> list[Any]:
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]
