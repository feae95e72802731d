"""A made-up /proc and /sys, for whatever looks at the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.machine import cpus


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty file system in place of /proc and /sys."""
    monkeypatch.setattr(cpus, "ROOT", tmp_path)
    return tmp_path


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
