"""The contract, for Horovod's strategies."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract


@pytest.mark.real
class TestHorovodGloo(StrategyContract):
    strategy = "horovod_gloo"


@pytest.mark.real
class TestHorovodGloo1(StrategyContract):
    strategy = "horovod_gloo"
    gpus = 1


@pytest.mark.real
class TestHorovodMpi(StrategyContract):
    strategy = "horovod_mpi"


@pytest.mark.real
class TestHorovodMpi3(StrategyContract):
    strategy = "horovod_mpi"
    gpus = 3


@pytest.mark.real
class TestHorovodTensorFlowGloo(StrategyContract):
    strategy = "horovod_tensorflow_gloo"


@pytest.mark.real
class TestHorovodTensorFlowMpi(StrategyContract):
    strategy = "horovod_tensorflow_mpi"


@pytest.mark.real
class TestLightningHorovod(StrategyContract):
    strategy = "lightning_horovod"


@pytest.mark.real
@pytest.mark.slow
class TestHorovodMpi1(StrategyContract):
    strategy = "horovod_mpi"
    gpus = 1


@pytest.mark.real
@pytest.mark.slow
class TestHorovodGloo3(StrategyContract):
    strategy = "horovod_gloo"
    gpus = 3


@pytest.mark.real
@pytest.mark.slow
class TestHorovodTensorFlowGloo3(StrategyContract):
    strategy = "horovod_tensorflow_gloo"
    gpus = 3


@pytest.mark.real
@pytest.mark.slow
class TestHorovodHalfPrecision(StrategyContract):
    """Of what is sent, and with it of the gradients: the same updates but for their last digits."""

    strategy = "horovod_mpi"
    overrides = ("strategy.options.compression=fp16", "strategy.options.fusion_threshold_mb=0.25")
    loss_rtol = 0.02
    weight_atol = 0.01
    bytes_sent = 2
