"""The contract of strategies whose model is cut into stages: what goes between them are activations, and not the
gradients of all weights. Their processes train on the same samples, which the last stage tells."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract

SENT = 0.0


@pytest.mark.real
class TestModelParallel(StrategyContract):
    strategy = "model_parallel"
    bytes_sent = SENT


@pytest.mark.slow
@pytest.mark.real
class TestModelParallel1(StrategyContract):
    strategy = "model_parallel"
    bytes_sent = SENT
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestModelParallel3(StrategyContract):
    strategy = "model_parallel"
    bytes_sent = SENT
    gpus = 3


@pytest.mark.real
class TestPipelineGpipe(StrategyContract):
    strategy = "pipeline_gpipe"
    bytes_sent = SENT


@pytest.mark.slow
@pytest.mark.real
class TestPipelineGpipe1(StrategyContract):
    strategy = "pipeline_gpipe"
    bytes_sent = SENT
    gpus = 1


@pytest.mark.real
class TestPipeline1F1B(StrategyContract):
    strategy = "pipeline_1f1b"
    bytes_sent = SENT


@pytest.mark.slow
@pytest.mark.real
class TestPipeline1F1B3(StrategyContract):
    strategy = "pipeline_1f1b"
    bytes_sent = SENT
    gpus = 3


@pytest.mark.slow
@pytest.mark.real
class TestHybrid(StrategyContract):
    """The gradients of every weight go between replicas, beside the activations. 60 samples in parts of 15."""

    strategy = "hybrid"
    gpus = 4
    overrides = ("strategy.options.micro_batches=2",)


@pytest.mark.real
class TestHybrid1(StrategyContract):
    """One device has all of the model, whatever number of stages was asked for: its own baseline."""

    strategy = "hybrid"
    gpus = 1


@pytest.mark.real
class TestHybridOfTwoReplicas(StrategyContract):
    """One stage each: parts that differ by one sample, as one micro-batch."""

    strategy = "hybrid"
    overrides = ("strategy.options.stages=1", "strategy.options.micro_batches=1")
