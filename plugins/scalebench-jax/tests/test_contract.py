"""Both strategies pass scalebench's contract: the losses of bare_jax are PyTorch's, and those of several devices are
those of one; and a process that goes wrong ends the run."""

from __future__ import annotations

import pytest

from scalebench.testing import FaultContract, StrategyContract

# Pictures in bytes, by momentum: Adam divides small gradients by themselves, and so makes steps of what is rounding.
PICTURES = ("model=cifar10_cnn", "train.dropout=false", "dataset.validation_share=0.25", "train.optimizer=momentum")


@pytest.mark.real
class TestBareJax(StrategyContract):
    strategy = "bare_jax"
    baseline = "bare_torch"
    gpus = 1


@pytest.mark.real
class TestDataParallel(StrategyContract):
    strategy = "jax_data_parallel"


@pytest.mark.slow
@pytest.mark.real
class TestDataParallel1(StrategyContract):
    strategy = "jax_data_parallel"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestDataParallel3(StrategyContract):
    strategy = "jax_data_parallel"
    gpus = 3


@pytest.mark.slow
@pytest.mark.real
class TestDataParallelInPieces(StrategyContract):
    """31 samples on 2 devices in pieces of 4 and 3."""

    strategy = "jax_data_parallel"
    overrides = ("train.accumulate=4", "dataset.prefetch=queue")


@pytest.mark.slow
@pytest.mark.real
class TestPicturesAsInPyTorch(StrategyContract):
    strategy = "bare_jax"
    baseline = "bare_torch"
    gpus = 1
    overrides = PICTURES


@pytest.mark.slow
@pytest.mark.real
class TestPicturesOnTwoDevices(StrategyContract):
    strategy = "jax_data_parallel"
    overrides = PICTURES


@pytest.mark.slow
@pytest.mark.real
class TestDataParallelFaults(FaultContract):
    """One process drives all devices."""

    strategy = "jax_data_parallel"
    rank = 0
    measuring = 1
    hang_s = 60.0  # XLA compiles within
    limit_s = 240.0
