"""Launches of null ranks for the tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from scalebench.launchers import local
from scalebench.launchers.watch import GroupExit, LaunchRequest
from scalebench.spec import RunSpec, write_spec

FOREVER = {"measure": {"min_s": 600.0, "max_s": 600.0, "timeout_s": 600.0}}
NEEDS_MPIRUN = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun here")


class Interrupted(Exception):
    """In place of KeyboardInterrupt, which pytest would take for its own."""


def launched(spec: RunSpec, folder: Path, **options: Any) -> GroupExit:
    write_spec(spec, folder)
    return local.launch(LaunchRequest(spec, folder, "an id", **options))
