"""`cluster`: a test cluster of the session's own, for tests with the marker `cluster`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.down import down
from tests.cluster.requirements import obstacle

PREFIX = "scalebench-testcluster-of-"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes, in a folder outside of pytest's: sockets want short names. Skips where there can be none."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    clear_left()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")).resolve()
    try:
        yield Cluster.start(folder, NODES="2", RATE="1gbit", ACCOUNTING="yes")
    finally:
        down(folder)
        shutil.rmtree(folder, ignore_errors=True)


def clear_left() -> None:
    """Stop clusters of sessions that were killed: their folders carry the number of a process that is gone."""
    for folder in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            down(folder)
            shutil.rmtree(folder, ignore_errors=True)
