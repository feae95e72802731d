"""A process that goes wrong ends the run."""

from __future__ import annotations

import pytest

from scalebench.testing import FaultContract


@pytest.mark.slow
@pytest.mark.real
class TestDataParallelFaults(FaultContract):
    """One process drives all devices."""

    strategy = "jax_data_parallel"
    rank = 0
    measuring = 1
    hang_s = 60.0  # XLA compiles within
    limit_s = 240.0
