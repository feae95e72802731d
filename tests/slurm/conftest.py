"""Stand-ins for the commands of SLURM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.builders import Tools


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)
