"""Work in tmp_path, with one cache of data sets for the session, and leave Hydra as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data_cache")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, data_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEBENCH_CACHE", str(data_cache))
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "scalebench-search")
    yield
    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None
