"""Folders that look like Horovod and the frameworks it was built for, ahead of those that the machine may have."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HOLDS = "def mpi_built(): return {mpi}\ndef gloo_built(): return {gloo}\ndef nccl_built(): return {nccl:d}\n"
EXTENSIONS = {"torch": "mpi_lib_v2.x.so", "tensorflow": "mpi_lib.x.so"}


class Site:
    """A folder of packages. Without `monkeypatch` it is for other processes only."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.folder = folder
        folder.mkdir()
        if monkeypatch is not None:
            monkeypatch.syspath_prepend(str(folder))
            monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
            monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # files change here within the tick of a clock
            for name in ("horovod", "torch", "tensorflow"):  # of an earlier test
                monkeypatch.delitem(sys.modules, name, raising=False)

    def horovod(self, built_for: dict[str, str], holds: str = "mpi gloo", code: str = "") -> Path:
        """Horovod 0.28.1 with the parts that metadata.json names; `code` stands in front of each. Its folder."""
        folder = self.distribution("horovod", "0.28.1")
        (folder / "metadata.json").write_text(json.dumps({**built_for, "dummy": "none"}))
        for name in ("torch", "tensorflow"):
            (folder / name).mkdir(exist_ok=True)
            answers = HOLDS.format(**{word: word in holds.split() for word in ("mpi", "gloo", "nccl")})
            (folder / name / "__init__.py").write_text(code + answers)
            if name.replace("torch", "pytorch") in built_for:
                (folder / name / EXTENSIONS[name]).write_text("")
        return folder

    def torch(self, version: str, cuda: str | None = None) -> None:
        folder = self.distribution("torch", version.partition("+")[0])
        (folder / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n")

    def distribution(self, name: str, version: str) -> Path:
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        package = self.folder / name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        importlib.invalidate_caches()
        return package
