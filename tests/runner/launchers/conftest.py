"""A module that stands in for the worker."""

import os
import textwrap

import pytest


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that makes such a module; its folder is sys.argv[1], its rank is `rank`."""

    def make(text):
        lines = "import os, signal, sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"
        (tmp_path / "stand_in.py").write_text(f"{lines}rank = int(os.environ['RANK'])\n{textwrap.dedent(text)}")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
        return "stand_in"

    return make
