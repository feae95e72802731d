"""The contract, for strategies that need GPUs, and as many as the devices they are asked on: skipped elsewhere."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract

pytestmark = [pytest.mark.slow, pytest.mark.real]


class TestDdpNccl(StrategyContract):
    strategy = "ddp_nccl"


class TestLightningDdpNccl(StrategyContract):
    strategy = "lightning_ddp_nccl"


class TestMirroredNccl(StrategyContract):
    strategy = "mirrored_nccl"


class TestMultiWorkerNccl(StrategyContract):
    strategy = "multiworker_nccl"


class TestHorovodNccl(StrategyContract):
    strategy = "horovod_nccl"


class TestHorovodTensorFlowNccl(StrategyContract):
    strategy = "horovod_tensorflow_nccl"
