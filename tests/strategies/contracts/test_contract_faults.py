"""A rank that goes wrong ends the run: one strategy of each adapter family and launcher."""

from __future__ import annotations

import pytest

from scalebench.testing import FaultContract


@pytest.mark.real
class TestDdpFaults(FaultContract):
    strategy = "ddp_gloo"


@pytest.mark.real
@pytest.mark.slow
class TestLightningFaults(FaultContract):
    strategy = "lightning_ddp_gloo"


@pytest.mark.real
@pytest.mark.slow
class TestMultiWorkerFaults(FaultContract):
    strategy = "multiworker_ring"


@pytest.mark.real
@pytest.mark.slow
class TestParameterServerFaults(FaultContract):
    """Of the chief; tests/strategies/tensorflow/test_parameter_server.py kills the others."""

    strategy = "parameter_server"
    rank = 0
    measuring = 1


@pytest.mark.real
@pytest.mark.slow
class TestHorovodGlooFaults(FaultContract):
    strategy = "horovod_gloo"


@pytest.mark.real
@pytest.mark.slow
class TestHorovodMpiFaults(FaultContract):
    strategy = "horovod_mpi"


class TestSimulatedFaults(FaultContract):
    strategy = "simulated"
    hang_s = 3.0
