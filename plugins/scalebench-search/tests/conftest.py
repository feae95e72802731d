"""Work in tmp_path, with one cache of data sets for the session, and leave Hydra as it was."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data_cache")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, data_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEBENCH_CACHE", str(data_cache))
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "scalebench-search")
