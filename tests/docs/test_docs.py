"""What the documentation says is there: its links lead somewhere, its commands compose."""

import os
import re
import subprocess
import sys

import pytest

from scalebench.core import run_folder
from tests.conftest import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*.md"), ROOT / "multirun/README.md"]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_page_of_the_results_folder_names_every_file():
    text = (ROOT / "multirun/README.md").read_text(encoding="utf-8")
    kinds = ("_FILE", "_LOG", "_SCRIPT", "_FOLDER")
    names = {value for name, value in vars(run_folder).items() if name.endswith(kinds) and isinstance(value, str)}
    assert len(names) > 15 and [name for name in sorted(names) if name not in text] == []


@pytest.mark.slow
@pytest.mark.real
def test_benchmarks_run(tmp_path):
    """They still do what they are for; what they print is for people."""
    env = {**os.environ, "BENCHMARK_LAUNCHES": "1", "BENCHMARK_RUNS": "1000", "BENCHMARK_SOAK_RUNS": "20"}
    program = [sys.executable, "-m", "benchmarks"]
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for subject in ("hand-written loop", "growth of anonymous memory", "loading / parsing"):
        assert subject in done.stdout


def test_the_code_of_the_notebook(tmp_path, monkeypatch, capsys):
    """All that starts no run, on a recorded sweep; test_notebook.py starts some."""
    (tmp_path / "multirun").symlink_to(ROOT / "tests/golden/corpus/target")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/guides/notebook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    reading = [block for block in blocks if "scalebench.run(" not in block]
    assert len(reading) == len(blocks) - 1 >= 3
    exec("\n".join(reading), {})
    assert "time_to_target_s" in capsys.readouterr().out
