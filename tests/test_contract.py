"""Every strategy passes the contract: at 2 workers, and one of each adapter family at 1 and 3 as well."""

from __future__ import annotations

import pytest

from scalebench.testing import FaultContract, StrategyContract


class TestNull(StrategyContract):
    strategy = "null"


class TestNull3(StrategyContract):
    strategy = "null"
    gpus = 3


@pytest.mark.real
class TestBareTorch(StrategyContract):
    strategy = "bare_torch"
    gpus = 1


@pytest.mark.real
class TestDdp(StrategyContract):
    strategy = "ddp"


@pytest.mark.real
class TestDdpGloo(StrategyContract):
    strategy = "ddp_gloo"


@pytest.mark.real
class TestDdpGloo1(StrategyContract):
    strategy = "ddp_gloo"
    gpus = 1


@pytest.mark.real
class TestDdpGloo3(StrategyContract):
    strategy = "ddp_gloo"
    gpus = 3


@pytest.mark.real
class TestLightningDdp(StrategyContract):
    strategy = "lightning_ddp"


@pytest.mark.real
class TestLightningDdpGloo(StrategyContract):
    strategy = "lightning_ddp_gloo"


@pytest.mark.real
class TestLightningDdpGloo1(StrategyContract):
    strategy = "lightning_ddp_gloo"
    gpus = 1


@pytest.mark.real
class TestLightningDdpGloo3(StrategyContract):
    strategy = "lightning_ddp_gloo"
    gpus = 3


@pytest.mark.real
class TestIndependentTorch(StrategyContract):
    strategy = "independent_torch"


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


@pytest.mark.real
class TestBareTensorFlowFit(StrategyContract):
    strategy = "bare_tensorflow"
    gpus = 1
    overrides = ("strategy.options.loop=fit",)


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


@pytest.mark.real
class TestCentralStorageCpu1(StrategyContract):
    strategy = "central_storage_cpu"
    gpus = 1


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


@pytest.mark.real
class TestMultiGpuModel1(StrategyContract):
    strategy = "multi_gpu_model"
    gpus = 1


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


@pytest.mark.real
class TestMultiWorkerRing1(StrategyContract):
    strategy = "multiworker_ring"
    gpus = 1


@pytest.mark.real
class TestMultiWorkerRing3(StrategyContract):
    strategy = "multiworker_ring"
    gpus = 3


@pytest.mark.real
class TestIndependentTensorFlow(StrategyContract):
    strategy = "independent_tensorflow"


@pytest.mark.real
class TestParameterServer(StrategyContract):
    strategy = "parameter_server"
    asynchronous = True


@pytest.mark.real
class TestParameterServer1(StrategyContract):
    """A lone worker's updates follow each other as the baseline's do."""

    strategy = "parameter_server"
    gpus = 1


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


# Pictures in bytes, labels, accuracy; 221 samples leave none to validate with the data set's own share.
PICTURES = ("model=cifar10_cnn", "train.dropout=false", "dataset.validation_share=0.25")


@pytest.mark.real
class TestPicturesInBothFrameworks(StrategyContract):
    """By momentum: Adam divides small gradients by themselves, and so makes steps of what is rounding in them."""

    strategy = "bare_tensorflow"
    baseline = "bare_torch"
    gpus = 1
    overrides = (*PICTURES, "train.optimizer=momentum")


@pytest.mark.real
class TestPicturesUnderDdp(StrategyContract):
    strategy = "ddp_gloo"
    overrides = PICTURES


@pytest.mark.real
class TestPicturesUnderMirrored(StrategyContract):
    strategy = "mirrored"
    overrides = PICTURES


@pytest.mark.real
class TestDdpFaults(FaultContract):
    strategy = "ddp_gloo"


@pytest.mark.real
class TestLightningFaults(FaultContract):
    strategy = "lightning_ddp_gloo"


@pytest.mark.real
@pytest.mark.slow
class TestMultiWorkerFaults(FaultContract):
    strategy = "multiworker_ring"


@pytest.mark.real
@pytest.mark.slow
class TestParameterServerFaults(FaultContract):
    """Of the chief; tests/adapters/tensorflow/test_parameter_server.py kills the others."""

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


class TestNullFaults(FaultContract):
    strategy = "null"
    hang_s = 3.0
