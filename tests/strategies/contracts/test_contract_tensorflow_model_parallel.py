"""The contract, for TensorFlow's stages of one model."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract


@pytest.mark.real
class TestModelParallelTensorFlow(StrategyContract):
    """What goes from device to device are activations and their gradients, and those of no parameter."""

    strategy = "model_parallel_tensorflow"
    bytes_sent = 0


@pytest.mark.slow
@pytest.mark.real
class TestModelParallelTensorFlow1(StrategyContract):
    strategy = "model_parallel_tensorflow"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestModelParallelTensorFlow3(StrategyContract):
    strategy = "model_parallel_tensorflow"
    gpus = 3
    bytes_sent = 0
    overrides = ("strategy.options.split=size",)
