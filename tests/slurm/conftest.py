"""Stand-ins for the commands of SLURM, and the paths that the scripts of a cluster contain."""

import sys

import pytest

from tests.slurm.builders import Tools


@pytest.fixture
def tools(tmp_path):
    return Tools(tmp_path)


@pytest.fixture
def cluster_paths(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/home/user/venv/bin/python")
    monkeypatch.setenv("SCALEBENCH_CACHE", "/scratch/user/cache")
