"""Fixtures for tests of the program on a test cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.program import Program


@pytest.fixture
def program(cluster: Cluster, tmp_path: Path, data_cache: Path) -> Iterator[Program]:
    """For one test."""
    made = Program(cluster, tmp_path / "program", data_cache)
    yield made
    made.clear()


@pytest.fixture(scope="module")
def shared_program(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> Iterator[Program]:
    """For a sweep that the tests of a file look at."""
    made = Program(cluster, tmp_path_factory.mktemp("program"), data_cache)
    yield made
    made.clear()
