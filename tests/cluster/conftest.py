"""Fixtures for tests of the program on a test cluster."""

import pytest

from tests.cluster.program import Program


@pytest.fixture
def program(cluster, tmp_path, data_cache):
    """For one test."""
    made = Program(cluster, tmp_path / "program", data_cache)
    yield made
    made.clear()


@pytest.fixture(scope="module")
def shared_program(cluster, tmp_path_factory, data_cache):
    """For a sweep that the tests of a file look at."""
    made = Program(cluster, tmp_path_factory.mktemp("program"), data_cache)
    yield made
    made.clear()
