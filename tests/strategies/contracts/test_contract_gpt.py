"""The contract on tokens: a target for each position, tables of rows, and gradients of rows that nobody looked up."""

from __future__ import annotations

from typing import ClassVar

import pytest

from scalebench.testing import StrategyContract

TINY = (
    "model=gpt_small",
    "model.options.layers=1",
    "model.options.width=32",
    "model.options.heads=2",
    "model.options.sequence_length=12",
    "dataset.classes=64",
    "dataset.validation_share=0.25",
    "measure.hang_s=240",  # several graphs are traced and optimised, which takes its time on a busy machine
    "train.learning_rate=0.1",
    "train.optimizer=momentum",  # AdamW divides small gradients by themselves, and so makes steps of what is rounding
)


class OnTokens(StrategyContract):
    overrides: ClassVar[tuple[str, ...]] = TINY


@pytest.mark.real
class TestBareInBothFrameworks(OnTokens):
    strategy = "bare_tensorflow"
    baseline = "bare_torch"
    gpus = 1


@pytest.mark.real
class TestFsdpGloo(OnTokens):
    """Whose layers free their weights where nobody overwrites what they gave."""

    strategy = "fsdp_gloo"
    overrides: ClassVar[tuple[str, ...]] = (*TINY, "strategy.options.unit_mb=0")


@pytest.mark.slow
@pytest.mark.real
class TestPipeline1F1B(OnTokens):
    strategy = "pipeline_1f1b"
    bytes_sent = 0.0


@pytest.mark.slow
@pytest.mark.real
class TestTensorParallel(OnTokens):
    strategy = "tensor_parallel"
    bytes_sent = 0.0


@pytest.mark.slow
@pytest.mark.real
class TestModelParallelTensorFlow(OnTokens):
    strategy = "model_parallel_tensorflow"
    bytes_sent = 0.0  # activations, however many parameters there are


@pytest.mark.slow
@pytest.mark.real
class TestZero1(OnTokens):
    strategy = "zero1"


@pytest.mark.real
class TestDdpGloo(OnTokens):
    strategy = "ddp_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestMirrored(OnTokens):
    strategy = "mirrored"


@pytest.mark.slow
@pytest.mark.real
class TestLightningDdpGloo(OnTokens):
    strategy = "lightning_ddp_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestHorovodGloo(OnTokens):
    strategy = "horovod_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestHorovodTensorflowGloo(OnTokens):
    strategy = "horovod_tensorflow_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestCentralStorage(OnTokens):
    strategy = "central_storage_cpu"


@pytest.mark.slow
@pytest.mark.real
class TestInGraph(OnTokens):
    strategy = "kuza55_ps_cpu"


@pytest.mark.slow
@pytest.mark.real
class TestMultiworker(OnTokens):
    strategy = "multiworker_ring"


@pytest.mark.slow
@pytest.mark.real
class TestParameterServer(OnTokens):
    strategy = "parameter_server"
