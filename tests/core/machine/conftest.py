"""A made-up /proc and /sys for tests of machine facts."""

import pytest

from scalebench.core.machine import cpus


@pytest.fixture
def root(monkeypatch, tmp_path):
    """Return an empty file system in place of /proc, /sys and the like."""
    monkeypatch.setattr(cpus, "SYSTEM_ROOT", tmp_path)
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(root, path, text=""):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
