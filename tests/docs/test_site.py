"""The site of docs/ builds without a warning, as `make docs` builds it, and each page says whom it is for."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
NO_MKDOCS = "mkdocs-material is not installed: pip install -e '.[docs]'"


@pytest.mark.skipif(find_spec("material") is None, reason=NO_MKDOCS)
def test_the_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    built = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert built >= {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in PAGES}
    assert (tmp_path / "site/search/search_index.json").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_whom_it_is_for(page):
    """In its first line of text: below the title, in italics."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line and not line.startswith("<!--")]
    assert lines[0].startswith("# ") and lines[1].startswith("*For ") and "*" in " ".join(lines[1:4])[1:]


def test_what_people_write_is_short():
    """README and all pages but the generated ones."""
    pages = [ROOT / "README.md", *(page for page in PAGES if page.parent.name != "reference")]
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in pages}
    # Pages for people who have GPUs come on top of what everybody reads.
    on_gpus = words.pop("docs/gpu.md") + words.pop("docs/guides/gpu-install.md")
    assert on_gpus < 1_000 and sum(words.values()) < 18_000, words
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90
