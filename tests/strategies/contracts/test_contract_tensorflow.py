"""The contract, for TensorFlow's strategies."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract


@pytest.mark.real
class TestBareTensorFlow(StrategyContract):
    strategy = "bare_tensorflow"
    gpus = 1


@pytest.mark.real
class TestBareTensorFlowAndTorch(StrategyContract):
    """One network, two frameworks: the same losses from the same weights and batches."""

    strategy = "bare_tensorflow"
    baseline = "bare_torch"
    gpus = 1


@pytest.mark.real
class TestMirrored(StrategyContract):
    strategy = "mirrored"


@pytest.mark.slow
@pytest.mark.real
class TestBareTensorFlowFit(StrategyContract):
    strategy = "bare_tensorflow"
    gpus = 1
    overrides = ("strategy.options.loop=fit",)


@pytest.mark.slow
@pytest.mark.real
class TestMirroredFit(StrategyContract):
    strategy = "mirrored"
    overrides = ("strategy.options.loop=fit",)


@pytest.mark.real
class TestMirrored1(StrategyContract):
    strategy = "mirrored"
    gpus = 1


@pytest.mark.real
class TestMirrored3(StrategyContract):
    strategy = "mirrored"
    gpus = 3


@pytest.mark.real
class TestMirroredHierarchical(StrategyContract):
    strategy = "mirrored_hierarchical"


@pytest.mark.real
class TestMirroredReduceCpu(StrategyContract):
    strategy = "mirrored_reduce_cpu"


@pytest.mark.real
class TestMirroredReduceDevice(StrategyContract):
    strategy = "mirrored_reduce_device"


@pytest.mark.real
class TestCentralStorageCpu(StrategyContract):
    strategy = "central_storage_cpu"


@pytest.mark.slow
@pytest.mark.real
class TestCentralStorageCpu1(StrategyContract):
    strategy = "central_storage_cpu"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestCentralStorageCpu3(StrategyContract):
    strategy = "central_storage_cpu"
    gpus = 3


@pytest.mark.real
class TestCentralStorageDevice(StrategyContract):
    strategy = "central_storage_device"


@pytest.mark.real
class TestMultiGpuModel(StrategyContract):
    strategy = "multi_gpu_model"


@pytest.mark.slow
@pytest.mark.real
class TestMultiGpuModel1(StrategyContract):
    strategy = "multi_gpu_model"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestMultiGpuModel3(StrategyContract):
    strategy = "multi_gpu_model"
    gpus = 3


@pytest.mark.real
class TestKuza55PsCpu(StrategyContract):
    """Every batch divides, the last of 30 as well: 180 training samples."""

    strategy = "kuza55_ps_cpu"
    overrides = ("dataset.size=240", "train.global_batch=30")


@pytest.mark.real
class TestKuza55PsGpu(StrategyContract):
    strategy = "kuza55_ps_gpu"
    overrides = ("dataset.size=240", "train.global_batch=30")


@pytest.mark.real
class TestAvolkov1PsCpu(StrategyContract):
    strategy = "avolkov1_ps_cpu"


@pytest.mark.real
class TestAvolkov1PsGpu(StrategyContract):
    """With a loss of each tower's own, as none of the originals had it."""

    strategy = "avolkov1_ps_gpu"
    overrides = ("strategy.options.loss=tower",)


@pytest.mark.real
class TestMultiWorkerRing(StrategyContract):
    strategy = "multiworker_ring"


@pytest.mark.slow
@pytest.mark.real
class TestMultiWorkerRing1(StrategyContract):
    strategy = "multiworker_ring"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestMultiWorkerRing3(StrategyContract):
    strategy = "multiworker_ring"
    gpus = 3


@pytest.mark.real
class TestIndependentTensorFlow(StrategyContract):
    strategy = "independent_tensorflow"


@pytest.mark.real
class TestParameterServer(StrategyContract):
    """Asynchronous, as its YAML says: losses fall."""

    strategy = "parameter_server"


@pytest.mark.slow
@pytest.mark.real
class TestParameterServer1(StrategyContract):
    """A lone worker's updates follow each other as the baseline's do."""

    strategy = "parameter_server"
    gpus = 1
    loss_rtol = 1e-4
    weight_atol = 1e-4
