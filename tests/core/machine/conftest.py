"""A made-up /proc and /sys for tests of machine facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.machine import cpus


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty file system in place of /proc, /sys and the like."""
    monkeypatch.setattr(cpus, "SYSTEM_ROOT", tmp_path)
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
